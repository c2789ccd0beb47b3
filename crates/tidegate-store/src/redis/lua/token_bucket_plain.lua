-- What most requests are, written out: a hit on one token bucket without a block. The same arithmetic and
-- the same bytes as token_bucket.lua and entry.lua; `false` sends the caller to decide.lua, with nothing charged.
-- KEYS: the key, and the index of tracked names if they are kept.
-- ARGV: now, cost, burst, period, per_us, interval, full, full_us, name. Returns now, verdict, remaining, reset, until
-- when to list the name where there is one but no index (0: no matter), and until when the key is blocked (0: it is not).
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local cost, period, per_us = tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
local interval, full, full_us = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
-- Of another type (a table with an error, of length 0) the key is left to decide.lua.
local bytes = redis.pcall('GET', KEYS[1])
local debt, until_at, listed, empty_at, moved = 0, 0, 0, 0, false
if bytes then
  if #bytes ~= 49 then return false end
  local tag, _, early, per
  tag, until_at, listed, _, empty_at, early, per = struct.unpack('<c1dddddd', bytes)
  -- The record of another period goes on as this limit's, as it is the only one: see `assign` in entry.lua.
  if tag ~= 'T' then return false end
  local wait = empty_at - now
  if wait > full_us then
    debt, moved = full, true
  elseif wait > 0 then
    debt = wait * per_us
    if per == per_us then debt = debt - early end
    if debt > full then debt = full end
  end
end
-- A block denies whatever the bucket holds, and for as long as it lasts; see decide.lua.
local left = math.max(until_at - now, 0)
local function told(verdict, remaining, reset, to_list)
  if left == 0 then return { now, verdict, remaining, reset, to_list, 0 } end
  return { now, math.max(verdict, left), 0, math.max(reset, left), to_list, until_at }
end
local verdict, after = -1, debt + cost * interval
if after > full then verdict = math.ceil((after - full) / per_us) end
if verdict > -1 or left > 0 then
  after = debt
  if not moved then
    return told(verdict, math.floor((full - debt) / interval), math.max(empty_at - now, 0), 0)
  end
end
local wait = math.ceil(after / per_us)
local ms = math.ceil(math.max(wait, left) / 1000)
local to_list = 0
if ARGV[9] ~= '' and now + ms * 1000 > listed then
  listed = now + 2 * math.max(ms * 1000, full_us)
  if KEYS[2] then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
    redis.call('ZADD', KEYS[2], string.format('%.0f', listed), ARGV[9])
    local more = math.ceil((listed - now) / 1000)
    if redis.call('PTTL', KEYS[2]) < more then redis.call('PEXPIRE', KEYS[2], more) end
  else
    to_list = listed
  end
end
local written = struct.pack('<c1dddddd', 'T', until_at, listed, period, now + wait, wait * per_us - after, per_us)
redis.call('SET', KEYS[1], written, 'PX', math.max(ms, 10000)) -- entry.lua's KEEP_MS
return told(verdict, math.floor((full - after) / interval), wait, to_list)

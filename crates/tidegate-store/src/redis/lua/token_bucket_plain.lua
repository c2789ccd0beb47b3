-- What most requests are, written out: a hit on one token bucket without a block. The same arithmetic and
-- the same bytes as token_bucket.lua and entry.lua; `false` sends the caller to decide.lua, with nothing charged.
-- KEYS: the key, and the index of tracked names if they are kept.
-- ARGV: now, cost, burst, period, per_us, interval, full, full_us, name. Returns now, verdict, remaining, reset, and
-- until when to list the name where there is one but no index (0: no matter).
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
  local tag, at, early, per
  tag, until_at, listed, at, empty_at, early, per = struct.unpack('<c1dddddd', bytes)
  if tag ~= 'T' or until_at > now or at ~= period then return false end
  local wait = empty_at - now
  if wait > full_us then
    debt, moved = full, true
  elseif wait > 0 then
    debt = wait * per_us
    if per == per_us then debt = debt - early end
    if debt > full then debt = full end
  end
end
local verdict, after = -1, debt + cost * interval
if after > full then
  verdict, after = math.ceil((after - full) / per_us), debt
  if not moved then
    return { now, verdict, math.floor((full - debt) / interval), math.max(empty_at - now, 0), 0 }
  end
end
local wait = math.ceil(after / per_us)
local ms = math.ceil(wait / 1000)
local to_list = 0
if ARGV[9] ~= '' and now + ms * 1000 > listed then
  listed = now + 2 * full_us
  if KEYS[2] then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
    redis.call('ZADD', KEYS[2], string.format('%.0f', listed), ARGV[9])
    local more = math.ceil(full_us / 500)
    if redis.call('PTTL', KEYS[2]) < more then redis.call('PEXPIRE', KEYS[2], more) end
  else
    to_list = listed
  end
end
local written = struct.pack('<c1dddddd', 'T', until_at, listed, period, now + wait, wait * per_us - after, per_us)
redis.call('SET', KEYS[1], written, 'PX', math.max(ms, 10000)) -- entry.lua's KEEP_MS
return { now, verdict, math.floor((full - after) / interval), wait, to_list }

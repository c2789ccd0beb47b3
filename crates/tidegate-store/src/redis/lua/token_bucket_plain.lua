-- What most requests are, written out: a hit on one token bucket without a block. The same arithmetic and
-- the same bytes as token_bucket.lua and entry.lua; `false` sends the caller to decide.lua, with nothing charged.
-- KEYS: the key, and the index of tracked names if they are kept.
-- ARGV: the name, the limit as five doubles (ticks of the cost, ticks in a microsecond, ticks and microseconds of a full
-- bucket, the period), and now in tests. Numbers as text, tables as replies and `now` as text cost more than the decision.
-- Returns doubles: now and the debt after it; and unless it is simply allowed: 1 if it is denied, until when the key is blocked (0: it
-- is not), until when to list the name where there is one but no index (0: nothing to list).
local call, now = redis.call, ARGV[3]
if now then
  now = tonumber(now)
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local price, per_us, full, full_us, period = struct.unpack('<ddddd', ARGV[2])
-- Of another type (a table with an error, of length 0) the key is left to decide.lua.
local bytes = redis.pcall('GET', KEYS[1])
local debt, until_at, listed, moved = 0, 0, 0, false
if bytes then
  if #bytes ~= 49 then return false end
  local tag, _, empty_at, early, per
  tag, until_at, listed, _, empty_at, early, per = struct.unpack('<Bdddddd', bytes)
  -- The record of another period goes on as this limit's, as it is the only one: see `assign` in entry.lua.
  if tag ~= 84 then return false end -- T
  local wait = empty_at - now
  if wait > full_us then
    debt, moved = full, true
  elseif wait > 0 then
    debt = wait * per_us
    if per == per_us then debt = debt - early end
    if debt > full then debt = full end
  end
end
local after, denied, left = debt + price, 0, until_at - now
-- A block denies whatever the bucket holds; see decide.lua.
if after > full or left > 0 then
  after, denied = debt, 1
  if not moved then return struct.pack('<ddddd', now, debt, 1, until_at, 0) end
end
local wait = math.ceil(after / per_us)
local keep = math.max(wait, left)
local to_list = 0
if now + keep > listed and ARGV[1] ~= '' then
  listed = now + 2 * math.max(math.ceil(keep / 1000) * 1000, full_us)
  if KEYS[2] then
    call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
    call('ZADD', KEYS[2], string.format('%.0f', listed), ARGV[1])
    local more = math.ceil((listed - now) / 1000)
    if call('PTTL', KEYS[2]) < more then call('PEXPIRE', KEYS[2], more) end
  else
    to_list = listed
  end
end
-- entry.lua's KEEP_MS, as text: Redis writes a number with seventeen digits, which takes longer than all the arithmetic.
local keep_ms = '10000'
if keep > 10000000 then keep_ms = math.ceil(keep / 1000) end
local written = struct.pack('<Bdddddd', 84, until_at, listed, period, now + wait, wait * per_us - after, per_us)
call('SET', KEYS[1], written, 'PX', keep_ms)
if denied + to_list == 0 then return struct.pack('<dd', now, after) end
return struct.pack('<ddddd', now, after, denied, until_at, to_list)

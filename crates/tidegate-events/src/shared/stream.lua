-- One transition of a shared stream: state, clock and messages together; the same steps as core's timeline.rs.
--
-- KEYS: 1 head (hash: clock, horizon, offset, frame, anew, run, epoch), 2 records (hash: event -> time,last,submitted,valid),
--       3 incubating (sorted set: event by the clock value of its submission), 4 re-armed (sorted set: event by
--       its last attempt), 5 log (stream: the clock value is the id)
-- ARGV: 1 now in microseconds (tests only), 2 what: submit, advance or start, 3 mode, 4 duration, 5 most events,
--       6 time between key frames, 7 most events of a key frame, 8 messages kept, 9 the clock that the caller
--       knows, 10 the event, 11 overdue: publish or invalidate, 12 the epoch that the caller knows, or has drawn for a
--       stream that has none
-- Returns: code, value, now in milliseconds, clock, when the next key frame is due, 1 if some of the state may be lost.
-- Codes: 0 advanced, 1 submitted (clock), 2 conflict (when the next could succeed), 3 full (likewise),
--        4 more is due than one call does: call again
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local what, strict, D, most = ARGV[2], ARGV[3] == 'strictly-once', tonumber(ARGV[4]), tonumber(ARGV[5])
local every, frame_most, kept, known = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local STEPS_MAX = 500                   -- of one call: no other client is served meanwhile
local STEP_BACK_MS = 1000               -- a clock that is set back further goes on from where it was
local LOST_JUMP = 1000000               -- after a possible loss: above every clock value that was sent to any subscriber
local KEEP_MS = 30 * 86400000           -- how long a stream outlives its last server

-- Which run of which server this is. After a failover or a restart it is another one than the last that made a step
-- here, and may have less than that one had and sent. A user without the right to ask gets no name, and no such notice.
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''

local head = redis.call('HMGET', KEYS[1], 'clock', 'horizon', 'offset', 'frame', 'run', 'epoch')
local clock, horizon = tonumber(head[1]) or 0, tonumber(head[2]) or 0
local offset, frame = tonumber(head[3]) or 0, tonumber(head[4])
local epoch = head[6] or ARGV[12]
local before, was = clock, horizon
local ms = math.floor(now / 1000) + offset
if horizon - ms > STEP_BACK_MS then
  offset = offset + horizon - ms
  redis.call('HSET', KEYS[1], 'offset', string.format('%.0f', offset))
end
horizon = math.max(horizon, ms)
ms = horizon

local function text(number) return string.format('%.0f', number) end
local function log_step(kind, ...)
  clock = clock + 1
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', kept, text(clock) .. '-0', 's', kind, 'h', epoch, ...)
end
local function record(event)
  local packed = redis.call('HGET', KEYS[2], event)
  if not packed then return nil end
  local time, last, submitted, valid = string.match(packed, '^(%d+),(%d+),(%d+),(%d)$')
  return { time = tonumber(time), last = tonumber(last), submitted = tonumber(submitted), valid = valid == '1' }
end
local function keep(event, r)
  redis.call('HSET', KEYS[2], event, text(r.time) .. ',' .. text(r.last) .. ',' .. text(r.submitted) .. ',' ..
    (r.valid and '1' or '0'))
end

-- A caller that knows another history must not go on in this one as if it were its own.
local lost = known > clock or (head[5] and head[5] ~= run) or (known > 0 and epoch ~= ARGV[12])
if lost then
  -- Before anything is published: subscribers begin anew with this key frame, and miss no publication after it.
  clock = math.max(known, clock) + LOST_JUMP
  log_step('K', 't', text(ms))
  redis.call('HSET', KEYS[1], 'anew', text(clock))
  frame = ms + every
end
if head[5] ~= run then redis.call('HSET', KEYS[1], 'run', run) end
if not head[6] then redis.call('HSET', KEYS[1], 'epoch', epoch) end
-- Only a start after a time without servers finds events overdue.
local invalidates = what == 'start' and ARGV[11] == 'invalidate' and ms - was > 5000

local steps, more = 0, false
while true do
  local event = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  if not event then break end
  local r = record(event)
  if r and r.time + D > ms then break end
  if steps == STEPS_MAX then more = true break end
  steps = steps + 1
  redis.call('ZREM', KEYS[3], event)
  if r and r.valid then
    log_step(invalidates and 'I' or 'P', 'e', event, 't', text(r.time), 'l', text(r.last))
  end
  if not redis.call('ZSCORE', KEYS[4], event) then redis.call('HDEL', KEYS[2], event) end
end
if not more then
  local old = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', text(ms - D), 'LIMIT', 0, STEPS_MAX)
  for _, event in ipairs(old) do
    redis.call('ZREM', KEYS[4], event)
    redis.call('HDEL', KEYS[2], event)
  end
  more = #old == STEPS_MAX
end
if not more and (not frame or frame <= ms) then
  if not frame or redis.call('ZCARD', KEYS[3]) <= frame_most then
    log_step('K', 't', text(ms))
  end
  local next_frame = (frame or ms) + every
  frame = next_frame > ms and next_frame or ms + every
end

local code, value = 0, 0
if more then
  code = 4
elseif what == 'submit' then
  local event = ARGV[10]
  local r = record(event)
  if r and not strict then
    code, value = 2, r.last + D
  elseif r then
    local last = math.max(r.last, ms)
    if r.valid then log_step('I', 'e', event, 't', text(r.time), 'l', text(last)) end
    r.last, r.valid = last, false
    keep(event, r)
    redis.call('ZADD', KEYS[4], text(last), event)
    code, value = 2, last + D
  elseif redis.call('HLEN', KEYS[2]) >= most then
    local first = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2]
    local front = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
    local time = front and record(front).time or tonumber(first)
    code, value = 3, math.min(time, tonumber(first) or time) + D
  else
    log_step('S', 'e', event, 't', text(ms))
    keep(event, { time = ms, last = ms, submitted = clock, valid = true })
    redis.call('ZADD', KEYS[3], text(clock), event)
    code, value = 1, clock
  end
end
redis.call('HSET', KEYS[1], 'clock', text(clock), 'horizon', text(horizon), 'frame', text(frame or ms))
if clock > before then
  for i = 2, 4 do redis.call('PEXPIRE', KEYS[i], text(D + KEEP_MS)) end
end
return { code, value, ms, clock, frame or ms, lost and 1 or 0 }

-- All of a shared stream at one moment: clock, horizon, the clock value of the key frame after the last possible loss,
-- the epoch or nothing, what incubates.
local head = redis.call('HMGET', KEYS[1], 'clock', 'horizon', 'anew', 'epoch')
local events = redis.call('ZRANGE', KEYS[2], 0, -1)
local records = {}
for first = 1, #events, 1000 do
  local last = math.min(first + 999, #events)
  for _, packed in ipairs(redis.call('HMGET', KEYS[3], unpack(events, first, last))) do
    records[#records + 1] = packed
  end
end
local function number(at) return tonumber(head[at]) or 0 end
return { number(1), number(2), number(3), head[4], events, records }

-- All of a shared stream at one moment: clock, horizon, the clock of the last key frame, what incubates.
local head = redis.call('HMGET', KEYS[1], 'clock', 'horizon', 'frame_clock')
local events = redis.call('ZRANGE', KEYS[2], 0, -1)
local records = {}
for first = 1, #events, 1000 do
  local last = math.min(first + 999, #events)
  for _, packed in ipairs(redis.call('HMGET', KEYS[3], unpack(events, first, last))) do
    records[#records + 1] = packed
  end
end
return { tonumber(head[1]) or 0, tonumber(head[2]) or 0, tonumber(head[3]) or 0, events, records }

-- All overrides that hold. ARGV: now. Returns now, version, and key and value of each.
local reply = { now, redis.call('HGET', KEYS[1], '') or '0' }
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= '' and holds(all[i + 1]) then
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = all[i + 1]
  end
end
return reply

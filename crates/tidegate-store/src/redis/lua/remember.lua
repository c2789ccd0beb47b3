-- Remembers a reservation, in the hash of its key: ARGV: now, id, until when, the rest. Those that ended without a commit are looked for when
-- the hash has become twice as long as they left it.
local names = KEYS[1]
local function ends_at(record) return tonumber(record:match('^%d+')) end
local most = tonumber(redis.call('HGET', names, '')) or 64
if redis.call('HLEN', names) > most then
  local all = redis.call('HGETALL', names)
  for i = 1, #all, 2 do
    if all[i] ~= '' and ends_at(all[i + 1]) <= now then redis.call('HDEL', names, all[i]) end
  end
  redis.call('HSET', names, '', string.format('%.0f', max(2 * redis.call('HLEN', names), 64)))
end
redis.call('HSET', names, ARGV[2], ARGV[3] .. ' ' .. ARGV[4])
local ms = string.format('%.0f', ceil(left(tonumber(ARGV[3])) / 1000) + 1)
if redis.call('PTTL', names) < tonumber(ms) then redis.call('PEXPIRE', names, ms) end
return { now }

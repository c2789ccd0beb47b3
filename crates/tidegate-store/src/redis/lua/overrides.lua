-- The overrides of a limiter: a hash with `UNTIL LIMITS` and a line with the reason for each key (0: until they are cleared),
-- and its version under the empty name, which no key has.
local function holds(value)
  local until_at = tonumber(string.match(value, '^%d+'))
  return until_at == 0 or until_at > now
end

local function drop_expired()
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if all[i] ~= '' and not holds(all[i + 1]) then redis.call('HDEL', KEYS[1], all[i]) end
  end
end

-- Larger than any before, also after the hash was lost.
local function next_version()
  local version = tonumber(redis.call('HGET', KEYS[1], '') or '0')
  redis.call('HSET', KEYS[1], '', string.format('%.0f', max(version + 1, now)))
end

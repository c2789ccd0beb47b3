-- Gives a key other limits. ARGV: now, key, for how long (0: until they are cleared), how many there may be, limits and reason.
-- Returns 0 (there are too many), or 1 and until when.
local key, span, most = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('HEXISTS', KEYS[1], key) == 0 and redis.call('HLEN', KEYS[1]) > most then
  drop_expired()
  if redis.call('HLEN', KEYS[1]) > most then return { 0 } end
end
local until_at = 0
if span > 0 then until_at = later(now, span) end
next_version()
redis.call('HSET', KEYS[1], key, string.format('%.0f', until_at) .. ' ' .. ARGV[5])
if until_at == 0 then return { 1 } end
return { 1, until_at }

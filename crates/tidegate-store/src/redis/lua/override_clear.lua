-- Takes a key's other limits back. ARGV: now, key. Returns 1 if there were any.
local value = redis.call('HGET', KEYS[1], ARGV[2])
if not value then return 0 end
next_version()
redis.call('HDEL', KEYS[1], ARGV[2])
return holds(value) and 1 or 0

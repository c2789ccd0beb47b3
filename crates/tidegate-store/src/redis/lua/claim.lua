-- Takes a reservation out, so that nobody else can: ARGV: now, id. Returns now, and what was remembered if it was there.
local record = redis.call('HGET', KEYS[1], ARGV[2])
if record then redis.call('HDEL', KEYS[1], ARGV[2]) end
return { now, record }

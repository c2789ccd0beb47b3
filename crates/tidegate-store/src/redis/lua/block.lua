-- Blocks a key for a time; its records stay. KEYS as in decide.lua.
-- ARGV: now, name, algorithm of a new key, microseconds. Returns until when.
local key, tracked, blocked_names = KEYS[1], KEYS[2], KEYS[3]
local until_at = later(now, tonumber(ARGV[4]))
local ms = ceil((until_at - now) / 1000)
local tag, listed, records = ARGV[3], 0, ''
local bytes, is_hash = read(key, false)
is_hash = is_hash or (not bytes and tag == 'G')
if bytes then
  local _
  tag, _, listed = struct.unpack(HEADER, bytes)
  records = string.sub(bytes, HEADER_BYTES + 1)
  ms = max(ms, redis.call('PTTL', key))
end
if tracked and tracked ~= key then
  listed = max(listed, ceil(now / 1000) + ms)
  index(tracked, ARGV[2], listed, listed - floor(now / 1000))
end
local written = struct.pack(HEADER, tag, until_at, listed) .. records
if is_hash then redis.call('HSET', key, 'h', written) else redis.call('SET', key, written) end
redis.call('PEXPIRE', key, string.format('%.0f', ms))
if blocked_names then index(blocked_names, ARGV[2], ceil(until_at / 1000), ceil((until_at - now) / 1000)) end
return { now, until_at }

-- Forgets a key's history and block. KEYS as in decide.lua. ARGV: now, name. Returns 1 if it was blocked.
local bytes = read(KEYS[1], false)
local was_blocked = 0
if bytes then
  local _, until_at = struct.unpack(HEADER, bytes)
  if until_at > now then was_blocked = 1 end
  redis.call('DEL', KEYS[1])
end
for place = 2, #KEYS do
  if KEYS[place] ~= KEYS[1] then redis.call('ZREM', KEYS[place], ARGV[2]) end
end
return { now, was_blocked }

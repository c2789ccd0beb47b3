-- Names of an index whose keys are tracked ('t') or blocked ('b') now. KEYS: the index.
-- ARGV: now, width, 't' or 'b', what the keys start with, a subject.
-- The keys are not declared: they share the index's hash tag, and so its slot and node.
local which, prefix = argument(), argument()
local any = subject(1)

local function is_listed(name)
  local e = { key = prefix .. name, keys = {}, tag = any.tag, limits = any.limits, meter = any.meter }
  load(e)
  if which == 'b' then return e.until_at > now end
  settle(e)
  return e.known and life(e) > 0
end

local names = { now }
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if is_listed(name) then names[#names + 1] = name end
end
return names

-- Names of an index whose keys are tracked ('t') or blocked ('b') now. KEYS: the index.
-- ARGV: now, 't' or 'b', what the keys start with, algorithm, and its limits as in decide.lua.
-- The keys are not declared: they share the index's hash tag, and so its slot and node.
local at = 3
local function argument()
  at = at + 1
  return ARGV[at]
end
local tag = argument()
local limits = limits_of(tag, argument)

local function is_listed(name)
  local e = { key = ARGV[3] .. name, tag = tag, limits = limits }
  load(e)
  if ARGV[2] == 'b' then return e.until_at > now end
  for i, l in ipairs(limits) do meters[tag].settle(e.states[i], l) end
  return e.known and life(e, meters[tag]) > 0
end

local names = { now }
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if is_listed(name) then names[#names + 1] = name end
end
return names

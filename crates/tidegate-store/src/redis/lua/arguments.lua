-- What a script is asked: after ARGV[1], the time, each takes its own arguments, and then a subject for each
-- `width` of KEYS: name, cost (0 where it is no decision), algorithm, how many limits, and for each count, period, block (0: none); for token buckets
-- also burst, per_us, interval, full, full_us; for buckets resolution and history; for aligned windows by how much they
-- begin before a multiple of the period.
local at = 1
local function argument()
  at = at + 1
  return ARGV[at]
end
local function number() return tonumber(argument()) end
local width = number()

local function limits_of(tag)
  local limits, shortest = {}, math.huge
  for i = 1, number() do
    local l = { count = number(), period = number(), block = number() }
    l.burst = l.count
    if tag == 'T' then
      l.burst, l.per_us, l.interval, l.full, l.full_us = number(), number(), number(), number(), number()
    elseif tag == 'A' then
      l.lead = number()
    elseif tag == 'B' then
      l.resolution, l.history = number(), number()
      l.blocks = floor(l.history / l.resolution)
    end
    shortest = min(shortest, l.period)
    limits[i] = l
  end
  for _, l in ipairs(limits) do l.shortest = shortest end
  return limits
end

-- The subject whose keys start at this place, without its states.
local function subject(place)
  local e = { keys = {}, name = argument(), cost = number(), tag = argument() }
  for i = 1, width do e.keys[i] = KEYS[place + i - 1] end
  e.key = e.keys[1]
  e.limits, e.meter = limits_of(e.tag), meters[e.tag]
  return e
end

local function settle(e)
  for i, l in ipairs(e.limits) do e.meter.settle(e.states[i], l) end
end

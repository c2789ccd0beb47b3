-- Limits as they are sent: how many, and for each count, period, block (0: none), and for token buckets
-- burst, per_us, interval, full, full_us.
local function limits_of(tag, argument)
  local function number() return tonumber(argument()) end
  local limits = {}
  for i = 1, number() do
    local l = { count = number(), period = number(), block = number() }
    l.burst = l.count
    if tag == 'T' then
      l.burst, l.per_us, l.interval, l.full, l.full_us = number(), number(), number(), number(), number()
    end
    limits[i] = l
  end
  return limits
end

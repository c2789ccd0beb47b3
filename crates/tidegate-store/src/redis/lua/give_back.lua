-- The core's give_back: takes back what a key was charged, the latest first, whichever request it was for. Averages keep what they have.
-- ARGV: now, width, cost, subject. Returns now.
local cost = number()
local e = subject(1)
load(e)
settle(e)
local refund = e.meter.refund
if e.tag == 'B' then
  local s, l, more = e.states[1], e.limits[1], cost
  for place = #s.blocks, 1, -1 do
    -- A block of Pause's may be below zero.
    local taken = max(min(more, s.blocks[place][2]), 0)
    if taken > 0 then refund(s, l, taken, s.blocks[place][1]) end
    more = more - taken
  end
elseif e.tag == 'G' then
  for i, l in ipairs(e.limits) do
    local s, more = e.states[i], cost
    while more > 0 and s.used > 0 do
      local taken = min(more, s.newest_cost)
      refund(s, l, taken, e.meter.mark(s, l))
      more = more - taken
    end
  end
elseif e.tag ~= 'L' and e.tag ~= 'S' then
  -- What the present window holds, which a mark of now stands for.
  for i, l in ipairs(e.limits) do refund(e.states[i], l, cost, e.meter.mark(e.states[i], l)) end
end
save(e)
return { now }

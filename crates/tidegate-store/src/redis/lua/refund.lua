-- Ends a charge that was pending: takes it back, as another key denied its request, or without marks confirms it.
-- ARGV: now, width, how many marks, the marks that the charge returned, subject (its cost is what is taken back). Returns now.
local marks = {}
for i = 1, number() do marks[i] = argument() end
local e = subject(1)
load(e)
settle(e)
e.pending = max(e.pending - 1, 0)
for i, mark in ipairs(marks) do
  if e.states[i] then e.meter.refund(e.states[i], e.limits[i], e.cost, mark) end
end
save(e)
return { now }

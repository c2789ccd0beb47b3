-- Ends a reservation, as core's all_or_nothing/reserve.rs does: takes off what was charged too much, where its marks say that it was counted,
-- or charges what was charged too little. ARGV: now, width, give back, excess, how many marks, the marks, subject.
-- Returns now, how much was given back, and until when the name is to be listed (0: no matter).
local back, excess, marks = number(), number(), {}
for i = 1, number() do marks[i] = argument() end
local e, given = subject(1), 0
load(e)
settle(e)
for i = 1, e.meter.shared and 1 or #e.limits do
  local s, l = e.states[i], e.limits[i]
  if back > 0 and marks[i] then given = max(given, e.meter.refund(s, l, back, marks[i])) end
  if excess > 0 then e.meter.overdraw(s, l, excess) end
end
save(e)
return { now, given, e.to_list or 0 }

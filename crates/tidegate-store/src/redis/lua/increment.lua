-- Counts in buckets, whatever the limits say. ARGV: now, width, time (empty: now), count, subject.
-- Returns 1 if the count was added: not when that time is older than what is kept; and until when to list the name.
local time, count = number() or now, number()
local e = subject(1)
load(e)
settle(e)
local counted = count > 0 and e.meter.add(e.states[1], e.limits[1], time, count)
save(e)
return { now, counted and 1 or 0, e.to_list or 0 }

-- Blocks a key for a time; its counts stay. ARGV: now, width, microseconds, subject. Returns until when,
-- and until when to list the name.
local span = number()
local e = subject(1)
load(e)
settle(e)
e.until_at, e.started = later(now, span), true
save(e)
return { now, e.until_at, e.to_list or 0 }

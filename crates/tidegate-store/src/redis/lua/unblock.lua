-- Forgets a key's history and block. ARGV: now, width, subject. Returns 1 if it was blocked.
local e = subject(1)
load(e)
forget(e)
return { now, e.until_at > now and 1 or 0 }

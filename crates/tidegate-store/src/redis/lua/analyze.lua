-- Has a key of buckets reached a limit? The first limit that is reached blocks the key; not while charges are pending.
-- ARGV: now, width, 'anew' to look at the counts though a block lasts, subject.
-- Returns 0 (no), or 1 (reached), limit's index, sum, blocked until; or 2 (the key was blocked before), until;
-- and until when to list the name (0: nothing to list).
local anew = argument() == 'anew'
local e = subject(1)
load(e)
local blocked = e.until_at > now
if blocked and not anew then return { now, 2, e.until_at, 0 } end
settle(e)
for i, l in ipairs((blocked or e.pending == 0) and e.limits or {}) do
  local sum = e.meter.crossing(e.states[i], l)
  if sum then
    if not blocked then e.until_at, e.started = later(now, l.block), true end
    save(e)
    return { now, 1, i - 1, sum, e.until_at, e.to_list or 0 }
  end
end
save(e)
if blocked then return { now, 2, e.until_at, e.to_list or 0 } end
return { now, 0, e.to_list or 0 }

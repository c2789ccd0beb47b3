-- Has a key of buckets reached a limit? The first that was blocks it. ARGV: now, width, subject.
-- Returns 0 (no), or 1 (blocked by this call), limit's index, sum, until; or 2 (it was blocked), until.
local e = subject(1)
load(e)
if e.until_at > now then return { now, 2, e.until_at } end
settle(e)
for i, l in ipairs(e.limits) do
  local sum = e.meter.crossing(e.states[i], l)
  if sum then
    e.until_at, e.started = later(now, l.block), true
    save(e)
    return { now, 1, i - 1, sum, e.until_at }
  end
end
save(e)
return { now, 0 }

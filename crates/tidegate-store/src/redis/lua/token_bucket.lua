-- The core's token_bucket.rs: a = empty at, b = ticks by which that is too late, c = ticks in a microsecond.
do
  local function debt(s, l)
    local wait = left(s.a)
    if wait > l.full_us then return l.full end
    local early = 0
    if s.c == l.per_us then early = s.b end
    return min(max(wait * l.per_us - early, 0), l.full)
  end

  local function set_debt(s, l, ticks)
    if ticks == 0 then
      s.a, s.b, s.c = 0, 0, 0
      return
    end
    local wait = ceil(ticks / l.per_us)
    s.a, s.b, s.c = later(now, wait), wait * l.per_us - ticks, l.per_us
  end

  meters.T = {
    span = function(l) return l.full_us end,
    settle = function(s, l)
      if s.a <= now then
        s.a, s.b, s.c = 0, 0, 0
      elseif s.a - now > l.full_us then
        set_debt(s, l, l.full)
      end
    end,
    verdict = function(s, l, cost)
      local over = debt(s, l) + cost * l.interval - l.full
      if over <= 0 then return ALLOW end
      return ceil(over / l.per_us)
    end,
    charge = function(s, l, cost) set_debt(s, l, debt(s, l) + cost * l.interval) end,
    -- Exact: a debt that has run out meanwhile would have done so without the charge, too.
    mark = function() return '' end,
    refund = function(s, l, cost) set_debt(s, l, max(debt(s, l) - cost * l.interval, 0)) end,
    status = function(s, l) return floor((l.full - debt(s, l)) / l.interval), left(s.a) end,
  }
end

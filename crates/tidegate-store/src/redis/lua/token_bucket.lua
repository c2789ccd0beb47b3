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
    mark = function(s, l) return string.format('%.0f %.0f %.0f %.0f %.0f', s.a, s.b, s.c, l.interval, l.full) end,
    -- What is still owed of the charge that left the mark; an empty mark is one of a charge that nothing is known of.
    refund = function(s, l, cost, mark)
      local owed, most = debt(s, l), l.full
      if mark ~= '' then
        local a, b, c, interval, full = mark:match('(%d+) (%d+) (%d+) (%d+) (%d+)')
        if tonumber(interval) ~= l.interval or tonumber(full) ~= l.full or tonumber(c) ~= l.per_us then return 0 end
        most = debt({ a = tonumber(a), b = tonumber(b), c = tonumber(c) }, l)
      end
      -- Compared before multiplied: no more than the burst is ever owed.
      local back = min(min(cost, l.burst) * l.interval, most, owed)
      set_debt(s, l, owed - back)
      return floor(back / l.interval)
    end,
    overdraw = function(s, l, cost)
      set_debt(s, l, min(debt(s, l) + min(cost, l.burst) * l.interval, l.full))
    end,
    status = function(s, l) return floor((l.full - debt(s, l)) / l.interval), left(s.a) end,
  }
end

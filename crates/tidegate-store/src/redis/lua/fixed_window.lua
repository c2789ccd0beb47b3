-- The core's fixed_window.rs: a = start, b = used.
do
  local function remains(s, l) return left(later(s.a, l.period)) end

  local function window(settle, charge)
    return {
      span = function(l) return l.period end,
      settle = settle,
      charge = charge,
      mark = function(s) return string.format('%.0f', s.a) end,
      refund = function(s, l, cost, mark)
        if s.a ~= tonumber(mark) then return 0 end
        local back = min(cost, s.b)
        s.b = s.b - back
        return back
      end,
      overdraw = function(s, l, cost) charge(s, l, min(cost, COUNT_MAX - s.b)) end,
      verdict = function(s, l, cost)
        if s.b + cost <= l.count then return ALLOW end
        return remains(s, l)
      end,
      status = function(s, l)
        local reset = 0
        if s.b > 0 then reset = remains(s, l) end
        return max(l.count - s.b, 0), reset
      end,
    }
  end

  -- Opens at the key's first hit.
  meters.F = window(function(s, l)
    if is_foreign(s.a, l.period) then
      s.a = now
    elseif max(now, s.a) - s.a >= l.period then
      s.a, s.b = 0, 0
    end
  end, function(s, l, cost)
    if s.b == 0 then s.a = now end
    s.b = s.b + cost
  end)

  -- Opens at multiples of the period since the epoch, less what the limit leads by: whole weeks begin on a Monday.
  local function window_start(l, time) return max(time - (time + l.lead) % l.period, 0) end
  meters.A = window(function(s, l)
    if s.b == 0 or is_foreign(s.a, l.period) then
      s.a = window_start(l, now)
      return
    end
    local effective = max(now, s.a)
    local current = window_start(l, effective)
    if s.a < current then s.b = 0 end
    s.a = current
  end, function(s, l, cost) s.b = s.b + cost end)
end

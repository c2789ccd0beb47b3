-- The core's average.rs, in the same order of operations: a = last + 1 (0: a new key), b = rate.
-- `next` is the rate that one request now has, `shown` the rate that an answer shows; neither is kept.
do
  local FORGOTTEN_AFTER, NEWTON_STEPS_MAX = 100, 64

  local function at(s, l, time)
    if s.a == 0 then return 0 end
    local gap = max(time - (s.a - 1), 0) / 1e6
    if gap <= 0 then gap = 1e-9 end
    local x = gap / (l.period / 1e6)
    local a = math.exp(-x)
    return (1 - a) / x + a * s.b
  end

  local function after(s, cost) return s.next + max(cost - 1, 0) end

  local function store(s, l, cost)
    s.was_a, s.was_b = s.a, s.b
    s.b = after(s, cost)
    s.a = max(s.a, now + 1)
    s.shown = s.b
    s.next = at(s, l, now)
  end

  -- The first gap, in periods and at least `from`, after which the rate has come below `room`.
  local function crossing(rate, room, from)
    if room <= 0 then return from end
    local x = max(from, math.log(rate / room), 1e-9)
    for _ = 1, NEWTON_STEPS_MAX do
      local a = math.exp(-x)
      local over = (1 - a) / x + a * rate - room
      local slope = -0.5
      if x >= 1e-4 then slope = (a * (x + 1) - 1) / (x * x) end
      local more = over / -(slope - a * rate)
      if not (more > x * 1e-12) then break end
      x = x + more
    end
    return x
  end

  local function wait(s, l, cost)
    if s.a == 0 then return 0 end
    local last, more = s.a - 1, max(cost - 1, 0)
    local elapsed = (max(now - last, 0) / 1e6) / (l.period / 1e6)
    local periods = crossing(s.b, l.count - more, elapsed)
    local time = max(later(last, ceil(periods * l.period)), now)
    local stride = 1
    while not (at(s, l, time) + more < l.count) and time < MAX do
      time = later(time, stride)
      stride = stride * 2
    end
    return left(time)
  end

  local function average(verdict, note)
    return {
      span = function(l) return l.period * FORGOTTEN_AFTER end,
      settle = function(s, l)
        if s.a > 0 and is_foreign(s.a - 1, l.period) then s.a = now + 1 end
        s.next = at(s, l, now)
        s.shown = s.next
      end,
      verdict = function(s, l, cost)
        if after(s, cost) >= l.count then return verdict(s, l, cost) end
        return ALLOW
      end,
      charge = store,
      -- A charge cannot be taken out of an average: the rate before it is put back if no request came since, and otherwise nothing changes.
      mark = function(s) return string.format('%.17g %.17g %.17g %.17g', s.was_a, s.was_b, s.a, s.b) end,
      refund = function(s, l, cost, mark)
        local was_a, was_b, a, b = string.match(mark, '(%S+) (%S+) (%S+) (%S+)')
        if s.a == tonumber(a) and s.b == tonumber(b) then s.a, s.b = tonumber(was_a), tonumber(was_b) end
      end,
      overdraw = function(s, l, cost) store(s, l, min(cost, l.burst)) end,
      note = note,
      rate = function(s) return string.format('%.17g', s.shown) end,
      status = function(s, l)
        local remaining = min(max(ceil(l.count - s.next), 0), l.count)
        local reset = 0
        if s.a > 0 then reset = left(later(s.a - 1, l.period * FORGOTTEN_AFTER)) end
        return remaining, reset
      end,
    }
  end

  -- Leaky: a request that is over does not count.
  meters.L = average(wait)
  -- Strict: it counts, and the rate has to fall by that much more.
  meters.S = average(function(s, l, cost)
    local counted = { a = s.a, b = s.b, next = s.next }
    store(counted, l, cost)
    return wait(counted, l, cost)
  end, function(s, l, cost)
    if cost <= max(l.count, 1) then store(s, l, cost) end
  end)
end

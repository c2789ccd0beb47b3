-- The core's sliding_window.rs: a = start, b = the previous window's count, c = this one's.
do
  -- a × b / c as a whole quotient and what remains; a < 2^32, b and c < 2^45. Products that a double does
  -- not hold are divided seven bits of `a` at a time, as on paper.
  local function divide(a, b, c)
    if a * b <= MAX then
      local q = floor(a * b / c)
      return q, a * b - q * c
    end
    local q, r = 0, 0
    for digit = 4, 0, -1 do
      local unit = 128 ^ digit
      local d = floor(a / unit)
      a = a - d * unit
      r = r * 128 + d * b
      local part = floor(r / c)
      q, r = q * 128 + part, r - part * c
    end
    return q, r
  end

  -- What is left of this window; all of it while a clock that stepped back catches up.
  local function rest(s, l) return max(l.period - max(now - s.a, 0), 0) end

  local function used(s, l)
    local q, r = divide(s.b, rest(s, l), l.period)
    if r > 0 then q = q + 1 end
    return s.c + q
  end

  local function until_end(s, l) return left(later(s.a, l.period)) end

  -- How much of a window must pass before `count` has faded to at most `room`.
  local function fade(count, room, period)
    if count <= room then return 0 end
    local covered = divide(room, period, count)
    return max(period - covered, 0)
  end

  meters.W = {
    span = function(l) return 2 * l.period end,
    settle = function(s, l)
      local period = l.period
      if s.b + s.c == 0 or is_foreign(s.a, period) then s.a = now end
      local effective = max(now, s.a)
      local current = effective - effective % period
      local behind = max(current - s.a, 0)
      if behind > period then
        s.b, s.c = 0, 0
      elseif behind > 0 then
        s.b, s.c = s.c, 0
      end
      s.a = current
    end,
    verdict = function(s, l, cost)
      if used(s, l) + cost <= l.count then return ALLOW end
      local room = l.count - cost
      if room >= s.c then
        local passed = l.period - rest(s, l)
        return left(s.a) + max(fade(s.b, room - s.c, l.period) - passed, 0)
      end
      return later(until_end(s, l), fade(s.c, room, l.period))
    end,
    charge = function(s, l, cost) s.c = s.c + cost end,
    mark = function(s) return string.format('%.0f', s.a) end,
    refund = function(s, l, cost, mark)
      local start, back = tonumber(mark), 0
      if s.a == start then
        back = min(cost, s.c)
        s.c = s.c - back
      elseif s.a == later(start, l.period) then
        back = min(cost, s.b)
        s.b = s.b - back
      end
      return back
    end,
    overdraw = function(s, l, cost) s.c = min(s.c + cost, COUNT_MAX) end,
    status = function(s, l)
      local reset = 0
      if s.c > 0 then
        reset = later(until_end(s, l), l.period)
      elseif s.b > 0 then
        reset = until_end(s, l)
      end
      return max(l.count - used(s, l), 0), reset
    end,
  }
end

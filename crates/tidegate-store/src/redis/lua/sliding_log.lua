-- The core's sliding_log.rs. One hash field for each limit's open chunk and for each full one, so that a
-- long log costs no more than a short one: ENTRY_BYTES an admission, a chunk rewritten at a time.
--   used, newest_at, newest_cost, oldest_at as in the core; the newest entry is not in a chunk yet
--   base: added to the times in chunks (a log that is carried over to another clock moves by it)
--   head, skip: the first live entry is entry `skip` of chunk `head`; chunk `tail` is the open one
do
  local ENTRY, ENTRY_BYTES, CHUNK_BYTES = '<dI4', 12, 12 * 64

  local function chunk(s, number)
    if number == s.tail then return s.open end
    local field = s.id .. ':' .. number
    s.chunks[number] = s.chunks[number] or redis.call('HGET', s.key, field) or ''
    return s.chunks[number]
  end

  -- Entry `skip` of chunk `number`, as time, cost and what follows it; nil behind the last.
  local function entry(s, number, skip)
    while number <= s.tail do
      local bytes = chunk(s, number)
      if skip * ENTRY_BYTES < #bytes then
        local time, cost = struct.unpack(ENTRY, bytes, skip * ENTRY_BYTES + 1)
        return time + s.base, cost, number, skip + 1
      end
      number, skip = number + 1, 0
    end
  end

  local function clear(s)
    s.used, s.newest_at, s.newest_cost, s.oldest_at = 0, 0, 0, 0
    s.base, s.open, s.head, s.skip = 0, '', s.tail, 0
  end

  local function expire(s, period, time)
    if max(time - s.newest_at, 0) >= period then return clear(s) end
    while max(time - s.oldest_at, 0) >= period do
      local _, cost, number, skip = entry(s, s.head, s.skip)
      s.used, s.head, s.skip = s.used - cost, number, skip
      s.oldest_at = entry(s, number, skip) or s.newest_at
    end
  end

  -- When the oldest entries that cost `needed` together will be gone.
  local function frees(s, needed, period)
    local freed, number, skip = 0, s.head, s.skip
    while true do
      local time, cost, next_number, next_skip = entry(s, number, skip)
      if not time then return later(s.newest_at, period) end
      freed = freed + cost
      if freed >= needed then return later(time, period) end
      number, skip = next_number, next_skip
    end
  end

  -- A full chunk is to be written.
  local function put(s, number, bytes)
    s.full[#s.full + 1] = s.id .. ':' .. number
    s.full[#s.full + 1] = bytes
  end

  local function push(s)
    s.open = s.open .. struct.pack(ENTRY, s.newest_at - s.base, s.newest_cost)
    if #s.open >= CHUNK_BYTES then
      put(s, s.tail, s.open)
      s.tail, s.open = s.tail + 1, ''
    end
  end

  -- The chunk with less in the entry of this time, and how much less; nil if it is not there.
  local function lowered(s, bytes, time, cost)
    for at = #bytes - ENTRY_BYTES + 1, 1, -ENTRY_BYTES do
      local entry_at, entry_cost = struct.unpack(ENTRY, bytes, at)
      if entry_at + s.base == time then
        local back = min(cost, entry_cost)
        local less = struct.pack(ENTRY, entry_at, entry_cost - back)
        return bytes:sub(1, at - 1) .. less .. bytes:sub(at + ENTRY_BYTES), back
      end
    end
  end

  -- The last entry that has a cost is the newest, a chunk that was full is open again; entries without one that are older count nothing where they are.
  local function drop_newest(s)
    while s.newest_cost == 0 do
      if s.open == '' and s.head < s.tail then s.open, s.tail = chunk(s, s.tail - 1), s.tail - 1 end
      local at = #s.open - ENTRY_BYTES + 1
      local time, cost = struct.unpack(ENTRY, s.open, at)
      s.newest_at, s.newest_cost, s.open = time + s.base, cost, s.open:sub(1, at - 1)
    end
  end

  -- Lowers the cost of the entry of this time, which is looked for from the end; how much it was.
  local function lower(s, time, cost)
    for number = s.tail, s.head, -1 do
      local bytes = chunk(s, number)
      local less, back = lowered(s, bytes, time, cost)
      if less then
        s.used, s.chunks[number] = s.used - back, less
        if number == s.tail then s.open = less else put(s, number, less) end
        return back
      end
      if #bytes > 0 and struct.unpack(ENTRY, bytes) + s.base < time then return 0 end
    end
    return 0
  end

  local function refund(s, l, cost, mark)
    local time, back = tonumber(mark), 0
    if s.used == 0 or time < s.oldest_at then return 0 end
    if time == s.newest_at then
      back = min(cost, s.newest_cost)
      s.used, s.newest_cost = s.used - back, s.newest_cost - back
    else
      back = lower(s, time, cost)
    end
    if s.used == 0 then clear(s) else drop_newest(s) end
    return back
  end

  local function charge(s, l, cost)
    if s.used == 0 then
      clear(s)
      s.used, s.newest_cost, s.newest_at, s.oldest_at = cost, cost, now, now
      return
    end
    local time = max(now, s.newest_at)
    s.used = s.used + cost
    if time == s.newest_at then
      s.newest_cost = s.newest_cost + cost
      return
    end
    push(s)
    s.newest_at, s.newest_cost = time, cost
  end

  meters.G = {
    mark = function(s) return string.format('%.0f', s.newest_at) end,
    refund = refund,
    span = function(l) return l.period end,
    settle = function(s, l)
      if s.used == 0 then return end
      if not is_foreign(s.newest_at, l.period) then return expire(s, l.period, max(now, s.newest_at)) end
      expire(s, l.period, s.newest_at)
      local span = s.newest_at - s.oldest_at
      local newest = max(now, span)
      s.base = s.base + newest - s.newest_at
      s.newest_at, s.oldest_at = newest, newest - span
    end,
    verdict = function(s, l, cost)
      local over = s.used + cost - l.count
      if over <= 0 then return ALLOW end
      return left(frees(s, over, l.period))
    end,
    charge = charge,
    overdraw = function(s, l, cost)
      local most = min(cost, COUNT_MAX - s.used)
      if most > 0 then charge(s, l, most) end
    end,
    status = function(s, l)
      local reset = 0
      if s.used > 0 then reset = left(later(s.newest_at, l.period)) end
      return max(l.count - s.used, 0), reset
    end,
  }
end

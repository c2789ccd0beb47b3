-- The core's buckets.rs. One state for all limits: s.blocks, oldest first, each { start, count }.
do
  local function block(l, time) return time - time % l.resolution end
  local function first(l, period) return max(block(l, now) - period, 0) end
  local function leaves(l, start) return later(block(l, later(start, l.period)), l.resolution) end

  -- The place of the first block that starts at `start` or later.
  local function find(s, start)
    local place = 1
    while s.blocks[place] and s.blocks[place][1] < start do place = place + 1 end
    return place
  end

  local function put(s, start, count)
    local place = find(s, start)
    local found = s.blocks[place]
    if found and found[1] == start then
      found[2] = min(found[2] + count, COUNT_MAX)
    else
      table.insert(s.blocks, place, { start, count })
    end
  end

  local function drop_oldest(s, how_many)
    for _ = 1, how_many do table.remove(s.blocks, 1) end
  end

  -- Moves the blocks that are ahead so that the newest is the present one.
  local function carry_over(s, l, newest)
    local present, ahead = block(l, now), {}
    while #s.blocks > 0 and s.blocks[#s.blocks][1] > present do ahead[#ahead + 1] = table.remove(s.blocks) end
    for i = #ahead, 1, -1 do put(s, max(ahead[i][1] - (newest - present), 0), ahead[i][2]) end
  end

  -- The block in which a time counts; nil when it is older than what is kept.
  local function place_of(s, l, time)
    local present, start = block(l, now), block(l, time)
    if is_foreign(start, l.shortest) then start = present end
    local oldest = first(l, l.history)
    if #s.blocks >= l.blocks then oldest = s.blocks[1][1] end
    if start >= min(oldest, present) then return max(start, oldest) end
  end

  local function add(s, l, time, count)
    local start = place_of(s, l, time)
    if not start then return false end
    local found = s.blocks[find(s, start)]
    if #s.blocks >= l.blocks and not (found and found[1] == start) then drop_oldest(s, #s.blocks + 1 - l.blocks) end
    put(s, start, count)
    s.placed = start
    return true
  end

  -- The place of the oldest block that the limit counts, and the sum from there.
  local function counted(s, l)
    local from, sum = #s.blocks + 1, 0
    local oldest = first(l, l.period)
    while from > 1 and s.blocks[from - 1][1] >= oldest do
      from = from - 1
      sum = sum + s.blocks[from][2]
    end
    return from, sum
  end

  meters.B = {
    shared = true,
    add = add,
    span = function(l) return l.period + l.resolution end,
    settle = function(s, l)
      local newest = s.blocks[#s.blocks]
      if not newest then return end
      if is_foreign(newest[1], l.shortest) then carry_over(s, l, newest[1]) end
      local old = find(s, first(l, l.history)) - 1
      drop_oldest(s, max(old, #s.blocks - l.blocks))
    end,
    verdict = function(s, l, cost)
      local from, sum = counted(s, l)
      local over = sum + cost - l.count
      if over <= 0 then return ALLOW end
      local freed = 0
      for place = from, #s.blocks do
        freed = freed + s.blocks[place][2]
        if freed >= over then return left(leaves(l, s.blocks[place][1])) end
      end
      return 0
    end,
    charge = function(s, l, cost) add(s, l, now, cost) end,
    mark = function(s) return string.format('%.0f', s.placed or -1) end,
    refund = function(s, l, cost, mark)
      local place = find(s, tonumber(mark))
      local found = s.blocks[place]
      if not found or found[1] ~= tonumber(mark) then return 0 end
      local back = min(cost, found[2])
      found[2] = found[2] - back
      if found[2] == 0 then table.remove(s.blocks, place) end
      return back
    end,
    overdraw = function(s, l, cost) add(s, l, now, cost) end,
    status = function(s, l)
      local from, sum = counted(s, l)
      local reset = 0
      if from <= #s.blocks then reset = left(leaves(l, s.blocks[#s.blocks][1])) end
      return max(l.count - sum, 0), reset
    end,
    -- The sum, newest first, at which the limit is reached; nil: it is not.
    crossing = function(s, l)
      local sum = 0
      for place = #s.blocks, (counted(s, l)), -1 do
        sum = sum + s.blocks[place][2]
        if sum >= l.count then return sum end
      end
    end,
  }
end

-- How a key lies in Redis: a header (algorithm, blocked until, listed until), then a record for each limit.
-- It is a string; of a sliding log it is field `h` of a hash, as its chunks are fields beside it.
-- A record starts with its limit's period: when limits were changed, each goes on with the record of the same
-- period, else with the one in its place. Another algorithm starts afresh, the block aside.
local HEADER, HEADER_BYTES = '<c1dd', 17
local WORDS, WORDS_BYTES = '<dddd', 32
local LOG, LOG_BYTES = '<dddddddddd', 80

local function log_of(key, l, id)
  return {
    key = key, id = id, period = l.period, used = 0, newest_at = 0, newest_cost = 0, oldest_at = 0,
    base = 0, head = 0, skip = 0, tail = 0, first = 0, open = '', chunks = {}, full = {},
  }
end

local function fresh(e, l, id)
  if e.tag == 'G' then return log_of(e.key, l, id) end
  return { period = l.period, a = 0, b = 0, c = 0 }
end

local function word_record(e, bytes, number)
  local s = {}
  s.period, s.a, s.b, s.c = struct.unpack(WORDS, bytes, HEADER_BYTES + (number - 1) * WORDS_BYTES + 1)
  return s
end

local function log_record(e, bytes, number)
  local s = log_of(e.key, {}, 0)
  s.id, s.period, s.used, s.newest_at, s.newest_cost, s.oldest_at, s.base, s.head, s.skip, s.tail =
    struct.unpack(LOG, bytes, HEADER_BYTES + (number - 1) * LOG_BYTES + 1)
  s.first = s.head
  s.open = redis.call('HGET', e.key, s.id .. ':') or ''
  return s
end

-- Gives each limit its record: of the same place and period, else of the same period, else of the same place.
local function assign(e, records)
  local states, taken, ids = {}, {}, 0
  for _, s in ipairs(records) do ids = max(ids, s.id or 0) end
  for i, l in ipairs(e.limits) do
    if records[i] and records[i].period == l.period then states[i], taken[i] = records[i], true end
  end
  for i, l in ipairs(e.limits) do
    for j, s in ipairs(records) do
      if not states[i] and not taken[j] and s.period == l.period then states[i], taken[j] = s, true end
    end
  end
  for i, l in ipairs(e.limits) do
    if not states[i] and records[i] and not taken[i] then
      states[i], taken[i] = records[i], true
      states[i].period, e.dirty = l.period, true
    elseif not states[i] then
      ids = ids + 1
      states[i] = fresh(e, l, ids)
    end
  end
  e.unused = {}
  for j, s in ipairs(records) do
    if not taken[j] then e.unused[#e.unused + 1] = s end
  end
  return states
end

local function read(key, is_log)
  local bytes
  if is_log then bytes = redis.pcall('HGET', key, 'h') else bytes = redis.pcall('GET', key) end
  if type(bytes) ~= 'table' then return bytes, false end
  -- Of the other type: the limiter has changed its algorithm.
  if is_log then return redis.call('GET', key), true end
  return redis.call('HGET', key, 'h'), true
end

-- e: key, tracked and blocked (the indexes; nil: none), tag, limits. Adds until, listed, states.
local function load(e)
  e.until_at, e.listed, e.known = 0, 0, false
  local bytes, other_type = read(e.key, e.tag == 'G')
  local records = {}
  if bytes then
    local tag
    tag, e.until_at, e.listed = struct.unpack(HEADER, bytes)
    e.known, e.bytes = true, bytes
    if tag == e.tag then
      local record, size = word_record, WORDS_BYTES
      if tag == 'G' then record, size = log_record, LOG_BYTES end
      for number = 1, (#bytes - HEADER_BYTES) / size do records[number] = record(e, bytes, number) end
    end
    e.replace = other_type
  end
  e.states = assign(e, records)
end

-- Keeps a name in an index until `time` (milliseconds), and the index as long as its names.
local function index(name, key, time, wait)
  redis.call('ZREMRANGEBYSCORE', name, '-inf', '(' .. string.format('%.0f', now / 1000))
  redis.call('ZADD', name, string.format('%.0f', time), key)
  if redis.call('PTTL', name) < wait then redis.call('PEXPIRE', name, string.format('%.0f', wait)) end
end

-- Milliseconds until the key equals a fresh one.
local function life(e, m)
  local us = left(e.until_at)
  for i, l in ipairs(e.limits) do
    local _, reset = m.status(e.states[i], l)
    us = max(us, reset)
  end
  return ceil(us / 1000)
end

-- The longest that a key of these limits can take to equal a fresh one.
local function longest(e, m)
  local us = 0
  for _, l in ipairs(e.limits) do us = max(us, m.span(l)) end
  return us
end

local function save_log(e, header)
  local fields, dead = { 'h', header }, {}
  for _, s in ipairs(e.states) do
    fields[2] = fields[2] .. struct.pack(LOG, s.id, s.period, s.used, s.newest_at, s.newest_cost, s.oldest_at,
      s.base, s.head, s.skip, s.tail)
    fields[#fields + 1] = s.id .. ':'
    fields[#fields + 1] = s.open
    for _, field in ipairs(s.full) do fields[#fields + 1] = field end
    for number = s.first, s.head - 1 do dead[#dead + 1] = s.id .. ':' .. number end
  end
  for _, s in ipairs(e.unused) do
    for number = s.first, s.tail - 1 do dead[#dead + 1] = s.id .. ':' .. number end
    dead[#dead + 1] = s.id .. ':'
  end
  if e.replace then redis.call('DEL', e.key) end
  redis.call('HSET', e.key, unpack(fields))
  if #dead > 0 then redis.call('HDEL', e.key, unpack(dead)) end
end

-- Writes what has changed, with an expiry; an entry equal to a fresh key is dropped.
local function save(e, m)
  local ms = life(e, m)
  if ms <= 0 then
    if e.known then redis.call('DEL', e.key) end
    return
  end
  local expires = ceil(now / 1000) + ms
  if e.tracked and expires > e.listed then
    -- Twice as long as it can live by its limits, so that a busy key comes here once in that time.
    local listed_ms = 2 * max(ms, ceil(longest(e, m) / 1000))
    e.listed = ceil(now / 1000) + listed_ms
    index(e.tracked, e.name, e.listed, listed_ms)
  end
  local header = struct.pack(HEADER, e.tag, e.until_at, e.listed)
  if e.tag == 'G' then
    save_log(e, header)
    redis.call('PEXPIRE', e.key, string.format('%.0f', ms))
    return
  end
  local parts = { header }
  for i, s in ipairs(e.states) do parts[i + 1] = struct.pack(WORDS, s.period, s.a, s.b, s.c) end
  local bytes = table.concat(parts)
  if bytes ~= e.bytes then redis.call('SET', e.key, bytes, 'PX', string.format('%.0f', ms)) end
end

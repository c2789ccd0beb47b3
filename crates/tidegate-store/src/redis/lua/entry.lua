-- How a key lies in Redis: a header (algorithm, blocked until, listed until), then a record for each limit; in
-- buckets one for each block of time. The keys of a subject are its state and, if it has three, the indexes of
-- tracked and of blocked names; where names are not kept, the state's key stands in for the first. Where it is only
-- the state, as the indexes may be on another node, the reply says until when a name is to be listed (`to_list`).
-- While charges are pending (see decide.lua) the algorithm is a small letter, and the header goes on with how many
-- there are and until when they count as pending.
-- An entry is a string; that of a sliding log is field `h` of a hash, as its chunks are fields beside it.
-- A record starts with its limit's period: when limits were changed, each goes on with the record of the same
-- period, else with the one in its place. Another algorithm starts afresh, the block aside.
local HEADER, HEADER_BYTES = '<c1dd', 17
local PENDING, PENDING_BYTES = '<dd', 16
local WORDS, WORDS_BYTES = '<dddd', 32
local LOG, LOG_BYTES = '<dddddddddd', 80
local BLOCK, BLOCK_BYTES = '<dI4', 12
-- A key stays at least this long, though it may equal a fresh one before: a key that comes and goes many times a
-- second would be entered into the index of names each time.
local KEEP_MS = 10000

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
  -- The key is of the other type: the limiter has changed its algorithm.
  if is_log then return redis.call('GET', key), true end
  return redis.call('HGET', key, 'h'), true
end

-- The one state of buckets, for every limit.
local function history(e, bytes)
  local s, states = { blocks = {} }, {}
  for at = HEADER_BYTES + 1, #bytes, BLOCK_BYTES do
    s.blocks[#s.blocks + 1] = { struct.unpack(BLOCK, bytes, at) }
  end
  for i = 1, #e.limits do states[i] = s end
  return states
end

-- Sets the fields that the header holds, and returns the letter and the bytes as they are without pending charges.
local function read_header(e, bytes)
  local tag
  tag, e.until_at, e.listed = struct.unpack(HEADER, bytes)
  local capital = tag:upper()
  if tag == capital then return tag, bytes end
  e.pending, e.pending_until = struct.unpack(PENDING, bytes, HEADER_BYTES + 1)
  if e.pending_until <= now then e.pending = 0 end
  return capital, bytes:sub(1, HEADER_BYTES) .. bytes:sub(HEADER_BYTES + PENDING_BYTES + 1)
end

local function header_of(e)
  if e.pending == 0 then return struct.pack(HEADER, e.tag, e.until_at, e.listed) end
  return struct.pack(HEADER, e.tag:lower(), e.until_at, e.listed) .. struct.pack(PENDING, e.pending, e.pending_until)
end

-- Adds to a subject what is known of it: until_at, listed, pending, states.
local function load(e)
  e.until_at, e.listed, e.known, e.pending, e.pending_until = 0, 0, false, 0, 0
  local bytes, other_type = read(e.key, e.tag == 'G')
  local records, blocks = {}, ''
  if bytes then
    local tag
    e.known, e.bytes = true, bytes
    tag, bytes = read_header(e, bytes)
    if tag == 'B' and e.tag == 'B' then
      blocks = bytes
    elseif tag == e.tag then
      local record, size = word_record, WORDS_BYTES
      if tag == 'G' then record, size = log_record, LOG_BYTES end
      for number = 1, (#bytes - HEADER_BYTES) / size do records[number] = record(e, bytes, number) end
    end
    e.replace = other_type
  end
  if e.tag == 'B' then e.states = history(e, blocks) else e.states = assign(e, records) end
end

-- Keeps a name in an index until `time`, and the index at least as long.
local function index(names, name, time)
  local ms = ceil((time - now) / 1000)
  redis.call('ZREMRANGEBYSCORE', names, '-inf', string.format('%.0f', now))
  redis.call('ZADD', names, string.format('%.0f', time), name)
  if redis.call('PTTL', names) < ms then redis.call('PEXPIRE', names, string.format('%.0f', ms)) end
end

-- Milliseconds until the key equals a fresh one.
local function life(e)
  local us = left(e.until_at)
  for i, l in ipairs(e.limits) do
    local _, reset = e.meter.status(e.states[i], l)
    us = max(us, reset)
  end
  return ceil(us / 1000)
end

-- The longest that a key of these limits can take to equal a fresh one.
local function longest(e)
  local us = 0
  for _, l in ipairs(e.limits) do us = max(us, e.meter.span(l)) end
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

local function text_of(e, header)
  local parts = { header }
  if e.tag == 'B' then
    for i, block in ipairs(e.states[1].blocks) do parts[i + 1] = struct.pack(BLOCK, block[1], block[2]) end
  else
    for i, s in ipairs(e.states) do parts[i + 1] = struct.pack(WORDS, s.period, s.a, s.b, s.c) end
  end
  return table.concat(parts)
end

local function note_names(e, ms)
  local tracked, blocked = e.keys[2], e.keys[3]
  if e.name ~= '' and tracked ~= e.key and later(now, ms * 1000) > e.listed then
    -- Twice as long as the key can live by its limits, so that a busy key is listed once in that time.
    e.listed = later(now, 2 * max(ms * 1000, longest(e)))
    if tracked then index(tracked, e.name, e.listed) else e.to_list = e.listed end
  end
  if blocked and e.started then index(blocked, e.name, e.until_at) end
end

-- Writes what has changed, with an expiry; an entry equal to a fresh key is dropped.
local function save(e)
  local ms = life(e)
  if ms <= 0 then
    if e.known then redis.call('DEL', e.key) end
    return
  end
  note_names(e, ms)
  local header = header_of(e)
  if e.tag == 'G' then
    save_log(e, header)
    redis.call('PEXPIRE', e.key, string.format('%.0f', max(ms, KEEP_MS)))
    return
  end
  local bytes = text_of(e, header)
  if bytes ~= e.bytes then redis.call('SET', e.key, bytes, 'PX', string.format('%.0f', max(ms, KEEP_MS))) end
end

local function forget(e)
  redis.call('DEL', e.key)
  for place = 2, #e.keys do
    if e.keys[place] ~= e.key then redis.call('ZREM', e.keys[place], e.name) end
  end
end

-- The other layout: Pause's own keys, which a Ruby application may read and write at the same time.
-- The first key of a subject is a sorted set, member = block start, score = count; the second, if it is here
-- and not on another shard, is the scope's: member = identifier, score = blocked until. Whole seconds.
-- There is no room for pending charges.
-- A score may be negative or have a fraction, as Ruby can count such: as there, a count is its whole part, and what is
-- charged is added to the score, so that the fraction stays.
local SECOND = 1000000
now = now - now % SECOND

local function seconds(time) return string.format('%.0f', time / SECOND) end

local function whole(score) return score < 0 and ceil(score) or floor(score) end

-- Ruby's clock and a block by hand may ask for a part of a second: it lasts until the next whole one.
later = function(time, span) return min(ceil((time + span) / SECOND) * SECOND, MAX) end

-- What was counted may have been below zero before the charge.
meters.B.refund = function(s, l, cost, mark)
  for place, block in ipairs(s.blocks) do
    if block[1] == tonumber(mark) then
      block[2] = block[2] - cost
      if block[2] == 0 then table.remove(s.blocks, place) end
      return
    end
  end
end

local function load(e)
  local s = { blocks = {} }
  local found = redis.call('ZRANGE', e.key, 0, -1, 'WITHSCORES')
  e.before, e.until_at, e.states, e.pending = {}, 0, {}, 0
  for at = 1, #found, 2 do
    local start, count = tonumber(found[at]), whole(tonumber(found[at + 1]))
    if start and count ~= 0 then
      s.blocks[#s.blocks + 1] = { start * SECOND, count }
      e.before[start * SECOND] = count
    end
  end
  table.sort(s.blocks, function(a, b) return a[1] < b[1] end)
  for i = 1, #e.limits do e.states[i] = s end
  if e.keys[2] then
    local score = tonumber(redis.call('ZSCORE', e.keys[2], e.name)) or 0
    e.until_at = max(0, min(ceil(score) * SECOND, MAX))
  end
end

local function save(e)
  local changed = false
  for _, block in ipairs(e.states[1].blocks) do
    local more = block[2] - (e.before[block[1]] or 0)
    if more ~= 0 then
      redis.call('ZINCRBY', e.key, string.format('%.0f', more), seconds(block[1]))
      changed = true
    end
    e.before[block[1]] = nil
  end
  for start in pairs(e.before) do redis.call('ZREM', e.key, seconds(start)) end
  if changed then redis.call('EXPIRE', e.key, seconds(e.limits[1].history)) end
  if e.started and e.keys[2] then
    redis.call('ZREMRANGEBYSCORE', e.keys[2], '-inf', seconds(now))
    redis.call('ZADD', e.keys[2], seconds(e.until_at), e.name)
  end
end

local function forget(e)
  redis.call('DEL', e.key)
  if e.keys[2] then redis.call('ZREM', e.keys[2], e.name) end
end

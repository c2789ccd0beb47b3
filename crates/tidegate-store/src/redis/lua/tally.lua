-- The core's replicas/tally.rs: what the replicas of one limit have started and hold of one key.
-- A hash: w = window, n = started, and for each replica its id = "held number until short".
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local me = ARGV[2]
local number, period, window = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local limit, in_flight = tonumber(ARGV[6]), tonumber(ARGV[7])
local held, want, unused = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local differ, lease, lead = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])

local OPEN, EXHAUSTED, FULL, OVERTAKEN, CLOCK = 0, 1, 2, 3, 4
local text = function(whole) return string.format('%.0f', whole) end

local begin = function(number) return math.max(number * period - lead, 0) end
local begins = begin(window)
if now < begins - differ or now >= begins + period + differ then
  return { CLOCK, text(now) }
end

local there = redis.call('HGETALL', KEYS[1])
local known, started, others, lacking, me_too, gone, ahead, longest = 0, 0, 0, {}, false, {}, {}, 0
for i = 1, #there, 2 do
  local field, value = there[i], there[i + 1]
  if field == 'w' then
    known = tonumber(value)
  elseif field == 'n' then
    started = tonumber(value)
  else
    local slots, last, ends, short = string.match(value, '^(%d+) (%d+) (%d+) (%d)$')
    if field == me then
      if tonumber(last) >= number then return { OVERTAKEN, '0' } end
      me_too = short == '1' and tonumber(ends) > now
    elseif tonumber(ends) <= now then
      gone[#gone + 1] = field
    else
      others = others + tonumber(slots)
      if short == '1' then lacking[#lacking + 1] = tonumber(slots) end
      longest = math.max(longest, math.min(tonumber(ends), now + lease))
    end
    -- Noted while this clock was ahead: a replica that is gone would keep its slots until then.
    if tonumber(ends) > now + lease then
      ahead[#ahead + 1] = { field, slots .. ' ' .. last .. ' ' .. text(now + lease) .. ' ' .. short }
    end
  end
end
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
for _, pair in ipairs(ahead) do redis.call('HSET', KEYS[1], pair[1], pair[2]) end

local granted, outlook, short = 0, EXHAUSTED, 0
-- Counted while this clock was ahead. What was started then may have been started just now: this window is used up.
if begin(known) > now + period then known, started = window, limit end
if window > known then known, started = window, 0 end
-- Another replica may be a window ahead: for this one it is over.
if window == known then
  started = math.max(started - unused, 0)
  local left, room = math.max(limit - started, 0), want
  if in_flight > 0 then
    -- While other replicas are short of slots, what they lack of their part is left to them.
    local claims = #lacking + 1
    local part = math.max(math.floor(in_flight / claims), 1)
    local own = part
    if in_flight < claims and not me_too then own = 0 end
    local free, reserved = math.max(in_flight - others - held, 0), 0
    for _, has in ipairs(lacking) do reserved = reserved + math.max(part - has, 0) end
    room = math.min(free, math.max(own - held, free - reserved, 0))
  end
  granted = math.min(want, left, room)
  if granted == left then
    outlook = EXHAUSTED
  elseif in_flight > 0 and granted == room then
    outlook = FULL
    if granted < want then short = 1 end
  else
    outlook = OPEN
  end
  started = started + granted
  redis.call('HSET', KEYS[1], 'w', text(known), 'n', text(started))
end

if in_flight > 0 then
  local ends = now + lease
  redis.call('HSET', KEYS[1], me, text(held + granted) .. ' ' .. ARGV[3] .. ' ' .. text(ends) .. ' ' .. short)
  longest = math.max(longest, ends)
end
longest = math.max(longest, begin(known) + period + differ)
redis.call('PEXPIRE', KEYS[1], text(math.ceil((longest - now) / 1000)))
return { outlook, text(granted) }

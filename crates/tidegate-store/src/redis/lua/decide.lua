-- The core's all_or_nothing.rs: unless every limit of every subject that is enforced allows, none is charged.
-- A subject's role is empty where it is enforced, 'a' for an alternative, of which one has to allow; of a candidate it is the number of the subject
-- that it would replace (0: none).
-- ARGV: now, width, 'h' hit, 'p' peek or 'r' hit that may be given back, cost, '1' to explain, subjects, before each what is asked of it alone: a cost, with a minus where it is
-- not to be charged; empty: as of all. For keys that are decided separately: 'd' leaves
-- behind what a denial does and charges nothing; 'c' charges, and leaves nothing behind if the charge is denied. It has
-- one argument more before the subjects: for how long the charge is pending, as it may be taken back (0: it is final).
-- While a key has pending charges, its denials start no block: without those charges the request might have been allowed.
-- Returns now, then for each subject: reason, limit's index, verdict, remaining, reset, rate, blocked until,
--   the decisions of all limits, if they were asked for, what a refund has to know of a charge ('c', 'r'), and until when the name is to be listed (0: nothing to list).
local intent, cost, explain = argument(), number(), argument() == '1'
local pending_us = intent == 'c' and number() or 0
local OK, LIMITED, BLOCKED, COST_ABOVE_LIMIT = 0, 1, 2, 3

local function verdict(e, i)
  local l = e.limits[i]
  if e.cost == 0 then return ALLOW end
  if e.cost > l.burst then return NEVER end
  return e.meter.verdict(e.states[i], l, e.cost)
end

local function decision(e, i, v)
  local m, s, l = e.meter, e.states[i], e.limits[i]
  local remaining, reset = m.status(s, l)
  local rate = ''
  if m.rate then rate = m.rate(s) end
  return { index = i, verdict = v, remaining = remaining, reset = reset, rate = rate }
end

local function allows(e)
  if e.until_at > now then return false end
  for i = 1, #e.limits do
    if verdict(e, i) ~= ALLOW then return false end
  end
  return true
end

-- The deciding limit's decision: the gravest verdict, or when all allow the least remaining; ties in order.
local function weigh(e, verdict_of)
  local best
  for i = 1, #e.limits do
    local d = decision(e, i, verdict_of(e, i))
    local graver = not best or d.verdict > best.verdict
    if graver or (d.verdict == ALLOW and best.verdict == ALLOW and d.remaining < best.remaining) then best = d end
  end
  best.reason = LIMITED
  if best.verdict == ALLOW then best.reason = OK end
  if best.verdict == NEVER then best.reason = COST_ABOVE_LIMIT end
  return best
end

local function blocked(e, ruling)
  if ruling.reason == COST_ABOVE_LIMIT then return ruling end
  local wait = e.until_at - now
  ruling.verdict, ruling.remaining = max(ruling.verdict, wait), 0
  ruling.reset, ruling.reason = max(ruling.reset, wait), BLOCKED
  return ruling
end

local function look(e)
  local ruling = weigh(e, verdict)
  if e.until_at > now then return blocked(e, ruling) end
  return ruling
end

-- Notes the denial in the states of the limits that deny, and in no others.
local function note_denial(e, ruling)
  if not e.meter.note or ruling.verdict == ALLOW or e.until_at > now then return ruling end
  for i, l in ipairs(e.limits) do
    if verdict(e, i) ~= ALLOW then e.meter.note(e.states[i], l, e.cost) end
  end
  local noted = decision(e, ruling.index, ruling.verdict)
  noted.reason = ruling.reason
  return noted
end

-- A denial starts the blocks of the limits that denied; the longest counts.
local function start_block(e, ruling)
  if ruling.reason ~= LIMITED or e.pending > 0 then return ruling end
  local longest = 0
  for i, l in ipairs(e.limits) do
    if l.block > longest and verdict(e, i) ~= ALLOW then longest = l.block end
  end
  if longest == 0 then return ruling end
  e.until_at, e.started = later(now, longest), true
  ruling = blocked(e, ruling)
  ruling.reason = LIMITED
  return ruling
end

local function charge(e)
  e.marks = {}
  if pending_us > 0 then
    e.pending, e.pending_until = e.pending + 1, max(e.pending_until, later(now, pending_us))
  end
  for i = 1, e.meter.shared and 1 or #e.limits do
    e.meter.charge(e.states[i], e.limits[i], e.cost)
    if intent == 'c' or intent == 'r' then e.marks[i] = e.meter.mark(e.states[i], e.limits[i]) end
  end
  return weigh(e, function() return ALLOW end)
end

local function conclude(e, all_allow)
  if e.looks or e.cost == 0 then return look(e) end
  if all_allow and intent ~= 'd' then return charge(e) end
  if all_allow or intent == 'c' then return look(e) end
  return start_block(e, note_denial(e, look(e)))
end

-- A verdict as the reply has it.
local function replied(v)
  if v == NEVER then return -2 end
  return v
end

local function explained(e, before)
  local all = {}
  settle(e)
  for i = 1, #e.limits do
    local d = decision(e, i, before[i])
    all[i] = { replied(d.verdict), d.remaining, d.reset, d.rate }
  end
  return all
end

local subjects, allowed = {}, {}
for place = 1, #KEYS, width do
  local own = argument()
  local e = subject(place)
  e.cost, e.looks = cost, intent == 'p'
  if own ~= '' then e.cost, e.looks = math.abs(tonumber(own)), own:sub(1, 1) == '-' end
  load(e)
  settle(e)
  subjects[#subjects + 1] = e
  allowed[#subjects] = allows(e)
end
-- Does all that this subject's charge depends on allow?
local function all_allow_for(i)
  local e = subjects[i]
  if e.role ~= '' and not allowed[i] then return false end
  local alternatives, one = false, false
  for j, other in ipairs(subjects) do
    if other.role == '' and e.role ~= tostring(j) and not allowed[j] then return false end
    if other.role == 'a' then alternatives, one = true, one or allowed[j] end
  end
  return one or not alternatives
end
local reply = { now }
for number_of, e in ipairs(subjects) do
  local before, all_allow = {}, all_allow_for(number_of)
  for i = 1, explain and #e.limits or 0 do before[i] = verdict(e, i) end
  local ruling = conclude(e, all_allow)
  local all = explain and explained(e, before) or {}
  if not e.looks and (intent == 'h' or intent == 'r' or e.marks or (intent == 'd' and not all_allow)) then save(e) end
  reply[#reply + 1] = {
    ruling.reason, ruling.index - 1, replied(ruling.verdict), ruling.remaining, ruling.reset, ruling.rate, e.until_at,
    all, e.marks or {}, e.to_list or 0,
  }
end
return reply

-- What every script starts with: the time, and the bounds of numbers.
-- ARGV[1] is empty in production: this server's clock is the authority. Only tests set it.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local MAX = 4503599627370495 -- the last microsecond that a time may have: 2^52 - 1
local COUNT_MAX = 4294967295
-- A verdict is a number, the larger the graver: allowed, a wait in microseconds, never.
local ALLOW, NEVER = -1, math.huge
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

-- Is a stored time so far ahead that it cannot come from this clock? See core's meter.rs.
local function is_foreign(stored, period) return stored - now > period end
local function left(time) return max(time - now, 0) end
local function later(time, span) return min(time + span, MAX) end

local meters = {}

-- A replica is still alive: the slots that it last reported stay its own.
local time = redis.call('TIME')
local me, held, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ends = tonumber(time[1]) * 1000000 + tonumber(time[2]) + lease
local there, number, short = redis.call('HGET', KEYS[1], me), '0', '0'
if there then held, number, short = string.match(there, '^(%d+) (%d+) %d+ (%d)$') end
redis.call('HSET', KEYS[1], me, held .. ' ' .. number .. ' ' .. string.format('%.0f', ends) .. ' ' .. short)
local lives = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], math.max(lives, math.ceil(lease / 1000)))
return 0

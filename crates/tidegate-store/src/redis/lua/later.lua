-- Names of a sorted set whose score is later than now. ARGV: now, microseconds in a unit of the score.
local unit = tonumber(ARGV[2])
local names = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', floor(now / unit)), '+inf')
table.insert(names, 1, now)
return names

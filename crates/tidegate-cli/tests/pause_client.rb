# Pause's data model, written from its table of keys: one command, its answer on standard output.
# usage: pause_client.rb PORT SCOPE COMMAND [IDENTIFIER [NUMBER]]
require 'redis'

RESOLUTION = Integer(ENV.fetch('RESOLUTION', '10'))
HISTORY = 600

port, scope, command, id, number = ARGV
redis = Redis.new(host: '127.0.0.1', port: port.to_i)
history = "i:#{scope}:|#{id}|"
blocks = "b:|#{scope}|"
flag = "internal:|#{scope}|:disabled"
now = Time.now.to_i

case command
when 'increment'
  redis.zincrby(history, number.to_f, (now / RESOLUTION * RESOLUTION).to_s)
  redis.expire(history, HISTORY)
when 'sum'
  puts redis.zrange(history, 0, -1, with_scores: true).sum { |_, count| count.to_i }
when 'starts'
  puts redis.zrange(history, 0, -1).all? { |start| (start.to_i % RESOLUTION).zero? && start =~ /\A\d+\z/ }
when 'ttl'
  puts redis.ttl(history)
when 'block'
  redis.zadd(blocks, now + number.to_f, id)
when 'until'
  puts redis.zscore(blocks, id)
when 'blocked'
  until_at = redis.zscore(blocks, id)
  puts until_at.nil? ? 0 : [until_at.to_i - now, 0].max
when 'list'
  puts redis.zrangebyscore(blocks, "(#{now}", '+inf').sort.join(' ')
when 'disable' then redis.set(flag, '1')
when 'enable' then redis.del(flag)
when 'disabled' then puts redis.get(flag) == '1'
end

-- Returns the servers with a lease in a bucket. The argument: the prefix of the bucket's keys.
local time = redis.call('TIME')
return redis.call('ZRANGEBYSCORE', ARGV[1] .. 'ls', time[1] * 1000 + math.floor(time[2] / 1000) + 1, '+inf')

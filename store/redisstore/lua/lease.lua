-- Takes or renews the lease of a server in a bucket. The arguments: the prefix of the bucket's keys, the server, its
-- address, and the milliseconds that the lease lasts, by the clock of the engine.
local time = redis.call('TIME')
redis.call('ZADD', ARGV[1] .. 'ls', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[2])
redis.call('HSET', ARGV[1] .. 'la', ARGV[2], ARGV[3])
return 1

-- Returns the epoch of the numbers of a bucket's changes, and the number of the last one. Another process of the engine
-- may have an older copy of the data, and so may assign numbers again. The script therefore makes a new epoch if the
-- epoch is of another process, or if the last number is below one that a server has seen in the epoch. The arguments:
-- the prefix of the bucket's keys, a new epoch, the epoch that the server knows, and the last number that it has seen
-- in it.
local moving = redis.pcall('EXISTS', ARGV[1] .. '?', ARGV[1] .. '??') -- See lib.lua.
if type(moving) == 'table' and moving.err then return redis.error_reply('TRYAGAIN the slot is moving') end

local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local f = redis.call('HMGET', ARGV[1] .. 'st', 'e', 'run', 'c')
local epoch, number = f[1], f[3] or '0'
if not epoch or f[2] ~= run or epoch == ARGV[3] and tonumber(number) < tonumber(ARGV[4]) then
  epoch = ARGV[2]
  redis.call('HSET', ARGV[1] .. 'st', 'e', epoch, 'run', run)
end
return { epoch, number }

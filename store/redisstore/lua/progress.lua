-- Saves the progress of a running turn. The arguments after those of lib.lua: the id of the conversation, the id of the
-- turn, and the progress. Returns 1, or 0 if the turn is not the running one or its conversation has ended.
local s = conversation(ARGV[4])
if not s or ended(s) then return 0 end
local of = call('HGET', P .. 'rt', T .. ARGV[4])
if not of or string.sub(of, 33) ~= ARGV[5] then return 0 end
call('SET', P .. 'p:' .. T .. ARGV[4], ARGV[6])
return 1

-- Commits a write of one conversation, of records of the tenant, or of both. It decides nothing but which conversation
-- makes room for a new one. The arguments after those of lib.lua:
--   id            of the conversation; empty for records of the tenant alone
--   read          revision of the conversation that was read; empty if there was none
--   mode          'change', 'create', 'import', 'overwrite' or 'delete'
--   tenantRead    revision of the tenant's records that was read; '-' if none were; 'decide:' and the id of the commit if
--                 it decides about records in another bucket
--   source        id of a conversation that was read, too; empty for none. sourceRead is its revision
--   maxCount      capacity of the tenant; 0 for none
--   maxBytes      limit of bytes of the tenant; 0 for none
--   place         key in the order of create time, without the id
--   summary       of the conversation after the write
--   messages, records, recordBytes, bytes    by how much the counts change; bytes with those of records
--   server        this process
--   changes       the encoded changes of the write, and how many of the last messages that it pushes are published with
--                 them, if they have no more than 1 MiB together
-- and then commands: the number of words of each and the words. SPLICE key field from to suffix keeps the bytes from
-- from to to of a field, counted from 1, and appends a suffix.
-- It returns 'moved' if something is not as it was read, 'full', or 'bytes' and the size that the tenant would have. The
-- conversation has then not changed; what is damaged or lost may have been removed from the lists of the tenant. Else it
-- returns 'done', the place of the change, see tell, 0 if nothing was published, and what it removed.
local id, read, mode, tenantRead, source, sourceRead = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local maxCount, maxBytes, place, text = tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12], ARGV[13]
local messages, records, recordBytes, bytes = tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])
local server, changes, told = ARGV[18], ARGV[19], tonumber(ARGV[20])
local c = P .. 'c:' .. T .. id

local f = { false, false, false }
if id ~= '' then
  f = call('HMGET', c, 'v', 'e', 's')
  if (f[1] or '') ~= read then return { 'moved' } end
end
-- Whoever sets the field of the commit first decides whether it is made, see across.go.
local decided = #tenantRead == 15 and string.match(tenantRead, '^decide:(.*)$')
if decided then
  if call('HEXISTS', P .. 'ac:' .. T, decided) == 1 then return { 'moved' } end
elseif tenantRead ~= '-' and (call('HGET', TENANT, 'v') or '') ~= tenantRead then return { 'moved' } end
if source ~= '' and (call('HGET', P .. 'c:' .. T .. source, 'v') or '') ~= sourceRead then return { 'moved' } end

-- What the write removes first. A tenant far above a lowered capacity is left to the sweep.
local victims = {}
local new = mode == 'create' or mode == 'import' or mode == 'overwrite'
if new or mode == 'delete' then
  local s = conversation(id)
  if s then
    if mode == 'create' or mode == 'import' then s.why = ended(s) or 'expired' end
    victims[1] = s
  end
end
local excess = call('ZCARD', BY_TIME) + 1 - maxCount
if new and mode ~= 'overwrite' and maxCount > 0 and excess > #victims then
  local most = math.min(excess, 100)
  addEnded(victims, most)
  if mode == 'create' then
    excess = addOldest(victims, most)
  end
  if #victims < excess then return { 'full' } end
end
if maxBytes > 0 and mode ~= 'delete' then
  local delta = bytes
  for _, s in ipairs(victims) do delta = delta - s.bytes - s.recordBytes end
  local after = (tonumber(call('HGET', TENANT, 'b')) or 0) + delta
  if delta > 0 and after > maxBytes then return { 'bytes', string.format('%.0f', after) } end
end
if decided then call('HSET', P .. 'ac:' .. T, decided, 'made ' .. now) end
for _, s in ipairs(victims) do remove(s, s.why) end
if new and (not victims[1] or victims[1].id ~= id) and call('EXISTS', P .. 'm:' .. T .. id, P .. 'ks:' .. T .. id) > 0 then
  removeLost(id)
end

local pushed, list = {}, P .. 'm:' .. T .. id
local at = 21
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  if ARGV[at + 1] == 'SPLICE' then
    local key, field, from, to, suffix = unpack(ARGV, at + 2, last)
    call('HSET', key, field, string.sub(call('HGET', key, field) or '', from, to) .. suffix)
  else
    call(unpack(ARGV, at + 1, last))
    if told > 0 and ARGV[at + 1] == 'RPUSH' and ARGV[at + 2] == list then
      for i = at + 3, last do pushed[#pushed + 1] = ARGV[i] end
    end
  end
  at = last + 1
end

if id ~= '' and mode ~= 'delete' then
  local s, old = summary(text), not new and summary(f[3]) or nil
  local ephemeral = f[2]
  if new then
    ephemeral = call('HGET', EPHEMERAL, id)
    if ephemeral then call('HSET', c, 'e', ephemeral) end
    call('ZADD', BY_TIME, 0, place .. id)
    call('HINCRBY', TOTAL, 'a', 1)
    if call('LPUSH', P .. 'cr', call('HGET', c, 'v')) > 1100 then call('LTRIM', P .. 'cr', 0, 999) end
    count('n', 1)
  end
  if not ephemeral and not s.running and s.ends ~= '9223372036854775807' then
    if not old or old.running or old.ends ~= s.ends then call('ZADD', BY_END, micros(s.ends), id) end
  elseif old then
    call('ZREM', BY_END, id)
  end
  if not old or old.running ~= s.running or old.evictable ~= s.evictable then
    if s.evictable and not s.running and not isHeld(ephemeral) then
      call('ZADD', EVICTABLE, 0, place .. id)
    else
      call('ZREM', EVICTABLE, place .. id)
    end
  end
end
count('m', messages)
count('b', bytes)
count('r', records)
count('y', recordBytes)
if new or #victims > 0 or records ~= 0 then listTenant() end
if id == '' then return { 'done', 0, removed } end
local published, size = {}, 0
for i = #pushed - told + 1, #pushed do
  published[#published + 1] = pushed[i]
  size = size + #pushed[i]
end
if size > 1048576 then published = {} end
return { 'done', tell(server, changes, published), removed }

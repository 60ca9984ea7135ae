-- ARGV: the schema of an empty key.  Forgets all but the epoch, which it raises.  Works on any content: it is the
-- remedy for a damaged key.  Returns {'ok', '1' if something was stored, else '0'}.
local kind = redis.call('TYPE', key)
if type(kind) == 'table' then kind = kind['ok'] end
local had, epoch = '0', 0
if kind == 'hash' then
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if field ~= 'schema' and string.sub(field, 1, 5) ~= 'epoch' then had = '1' end
  end
  local stored = redis.call('HGET', key, 'schema')
  if stored ~= ARGV[1] then had = '1' end
  local text, number = newest_epoch()
  epoch = number or server_time_s() -- unreadable: above what any driver took before this second
elseif kind ~= 'none' then
  had = '1'
else
  return {'ok', '0'} -- never heard of: nobody to fence, so no key is made for it
end
redis.call('DEL', key)
redis.call('HSET', key, 'schema', ARGV[1])
write_epoch(string.format('%.0f', epoch + 1))
return {'ok', had}

-- ARGV: schema, field, value.  Sets one partition back and raises the epoch.  Returns {'ok', epoch}.
local refusal = other_schema(ARGV[1]) or bad_number()
if refusal then return refusal end
local stored = redis.call('HGET', key, ARGV[2])
if not stored then return {'unknown'} end
local there = sort_key(stored)
if not there then return {'corrupt', ARGV[2]} end
if below(there, sort_key(ARGV[3])) then return {'ahead'} end
redis.call('HSET', key, ARGV[2], ARGV[3])
redis.call('HINCRBY', key, 'revision', 1)
return {'ok', tostring(redis.call('HINCRBY', key, 'epoch', 1))}

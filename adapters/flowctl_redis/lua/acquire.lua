-- ARGV: schema.  Returns {'ok', epoch}: one more than every epoch before.
local refusal = other_schema(ARGV[1])
if refusal then return refusal end
local text, epoch = newest_epoch()
if not epoch then return {'corrupt', 'epoch'} end
redis.call('HSET', key, 'schema', ARGV[1])
return {'ok', tostring(redis.call('HINCRBY', key, 'epoch', 1))}

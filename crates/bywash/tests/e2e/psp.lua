-- Dissects DEPI's packet streaming protocol (CableLabs R-DEPI) in L2TPv3 over IP, and the MAC frames in its segments.
local psp = Proto("psp", "DEPI PSP")
local fields = {
    session = ProtoField.uint32("psp.session", "Session"),
    flow = ProtoField.uint8("psp.flow", "Flow", base.DEC, nil, 0x0e),
    sequence = ProtoField.uint16("psp.sequence", "Sequence"),
    count = ProtoField.uint8("psp.count", "Segments"),
    length = ProtoField.uint16("psp.segment.length", "Segment length", base.DEC, nil, 0x3fff),
    whole = ProtoField.uint32("psp.frames", "Frames complete here"),
}
psp.fields = fields
local lost = ProtoExpert.new("psp.lost", "Lost packet or segment", expert.group.SEQUENCE, expert.severity.ERROR)
psp.experts = { lost }

local docsis = Dissector.get("docsis")
-- Bytes of the frame that each flow has begun, and its next sequence number.
local begun, following = {}, {}

function psp.init()
    begun, following = {}, {}
end

function psp.dissector(tvb, pinfo, tree)
    local at = tree:add(psp, tvb())
    at:add(fields.session, tvb(0, 4))
    at:add(fields.flow, tvb(4, 1))
    at:add(fields.count, tvb(5, 1))
    at:add(fields.sequence, tvb(6, 2))
    local flow = tvb(0, 4):uint() .. "/" .. bit.band(tvb(4, 1):uint(), 0x0e)
    local sequence, count = tvb(6, 2):uint(), tvb(5, 1):uint()
    if sequence ~= (following[flow] or sequence) then at:add_proto_expert_info(lost) end
    following[flow] = (sequence + 1) % 65536
    local start, whole = 8 + 2 * count, 0
    for n = 0, count - 1 do
        local entry = tvb(8 + 2 * n, 2)
        at:add(fields.length, entry)
        local word = entry:uint()
        local begins, ends, len = bit.band(word, 0x8000) ~= 0, bit.band(word, 0x4000) ~= 0, bit.band(word, 0x3fff)
        if begins == (begun[flow] ~= nil) then at:add_proto_expert_info(lost) end
        if begins or not begun[flow] then begun[flow] = ByteArray.new() end
        begun[flow]:append(tvb(start, len):bytes())
        start = start + len
        if ends then
            docsis:call(begun[flow]:tvb("MAC frame"), pinfo, tree)
            begun[flow], whole = nil, whole + 1
        end
    end
    at:add(fields.whole, whole)
    if start ~= tvb:len() then at:add_proto_expert_info(lost) end
    return tvb:len()
end

DissectorTable.get("ip.proto"):set(115, psp)

import java.util.HexFormat;
import java.util.List;
import java.util.OptionalInt;
import java.util.OptionalLong;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordHelpers;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.OffsetAndMetadata;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/** Prints records of __consumer_offsets as Kafka's own coordinator writes them: name, key and value in hexadecimal. */
public class GroupRecords {
    private static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();
    private static final Uuid TOPIC_ID = new Uuid(1, 2);

    private static void print(String name, CoordinatorRecord record) {
        byte[] value = SERDE.serializeValue(record);
        System.out.println(name + " " + hex(SERDE.serializeKey(record)) + " " + (value == null ? "-" : hex(value)));
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }

    private static void print(String name, ApiMessage key, ApiMessage value, int version) {
        print(name, CoordinatorRecord.record(key, new ApiMessageAndVersion(value, (short) version)));
    }

    private static CoordinatorRecord commit(OptionalLong expireMs, Uuid topicId) {
        OffsetAndMetadata offset =
            new OffsetAndMetadata(5, OptionalInt.of(7), "where ü", 1000, expireMs, topicId);
        return GroupCoordinatorRecordHelpers.newOffsetCommitRecord("g", "t", 3, offset);
    }

    public static void main(String[] args) {
        print("commit", commit(OptionalLong.empty(), Uuid.ZERO_UUID));
        print("commit-with-topic-id", commit(OptionalLong.empty(), TOPIC_ID));
        print("commit-that-expires", commit(OptionalLong.of(2000), Uuid.ZERO_UUID));
        print("commit-tombstone", GroupCoordinatorRecordHelpers.newOffsetCommitTombstoneRecord("g", "t", 3));
        print("classic", new GroupMetadataKey().setGroup("g"), new GroupMetadataValue()
            .setProtocolType("consumer").setGeneration(3).setProtocol("range").setLeader("m").setCurrentStateTimestamp(5)
            .setMembers(List.of(new GroupMetadataValue.MemberMetadata()
                .setMemberId("m").setGroupInstanceId("i").setClientId("c").setClientHost("/h")
                .setRebalanceTimeout(1).setSessionTimeout(2)
                .setSubscription(new byte[] {1}).setAssignment(new byte[] {2}))), 3);
        print("classic-tombstone", GroupCoordinatorRecordHelpers.newGroupMetadataTombstoneRecord("g"));
        print("epoch", GroupCoordinatorRecordHelpers.newConsumerGroupEpochRecord("g", 4, 99));
        print("epoch-tombstone", GroupCoordinatorRecordHelpers.newConsumerGroupEpochTombstoneRecord("g"));
        print("subscription-metadata-tombstone",
            GroupCoordinatorRecordHelpers.newConsumerGroupSubscriptionMetadataTombstoneRecord("g"));
        print("target-metadata",
            GroupCoordinatorRecordHelpers.newConsumerGroupTargetAssignmentMetadataRecord("g", 4, 77));
        member("member", null);
        member("member-of-the-classic-protocol", new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata()
            .setSessionTimeoutMs(7)
            .setSupportedProtocols(List.of(new ConsumerGroupMemberMetadataValue.ClassicProtocol()
                .setName("range").setMetadata(new byte[] {9}))));
        print("target-member", new ConsumerGroupTargetAssignmentMemberKey().setGroupId("g").setMemberId("m"),
            new ConsumerGroupTargetAssignmentMemberValue().setTopicPartitions(List.of(
                new ConsumerGroupTargetAssignmentMemberValue.TopicPartition()
                    .setTopicId(TOPIC_ID).setPartitions(List.of(1, 2)))), 0);
        print("current", new ConsumerGroupCurrentMemberAssignmentKey().setGroupId("g").setMemberId("m"),
            new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(3).setPreviousMemberEpoch(2)
                .setState((byte) 1).setAssignedPartitions(List.of(
                    new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
                        .setTopicId(TOPIC_ID).setPartitions(List.of(1, 2)).setAssignmentEpochs(List.of(3, 3)))), 0);
        print("regular-expression",
            new ConsumerGroupRegularExpressionKey().setGroupId("g").setRegularExpression("a.*"),
            new ConsumerGroupRegularExpressionValue().setTopics(List.of("a", "b")).setVersion(4).setTimestamp(5), 0);
    }

    private static void member(String name, ConsumerGroupMemberMetadataValue.ClassicMemberMetadata classic) {
        print(name, new ConsumerGroupMemberMetadataKey().setGroupId("g").setMemberId("m"),
            new ConsumerGroupMemberMetadataValue().setInstanceId("i").setRackId(null).setClientId("c")
                .setClientHost("/h").setSubscribedTopicNames(List.of("a", "b")).setSubscribedTopicRegex(null)
                .setRebalanceTimeoutMs(8).setServerAssignor("range").setClassicMemberMetadata(classic), 0);
    }
}

"""Which classes of transformers the walk compares, and why the others are left out."""

import re
from collections.abc import Iterable

CHOICE = (
    "BartForConditionalGeneration",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "DistilBertForTokenClassification",
    "LlamaForCausalLM",
    "LlamaForSequenceClassification",
    "ModernBertForMaskedLM",
    "Qwen3MoeForTokenClassification",
    "T5ForConditionalGeneration",
    "ViTForImageClassification",
    "Wav2Vec2ForSequenceClassification",
)
"""One class of each kind, for `make test`."""

CHOICE_IN_PROCESSES = (
    "BertForSequenceClassification",
    "DistilBertForTokenClassification",
    "LlamaForCausalLM",
    "T5ForConditionalGeneration",
)

EVEN_ONLY = {
    r"(Albert|Bert|BigBird|Ernie|FNet|MegatronBert|MobileBert)ForPreTraining": (
        """
        The loss is the sum of two means, over tokens and over samples. A micro-batch has one weight, so that the sum is
        that of the whole batch where all micro-batches have as many labels of each kind.
    """
    ),
    r"(Electra|Funnel)ForPreTraining": (
        """
        The mean is over all tokens that are attended to, whether their label is -100 or not, which nothing outside of
        the model knows. It is that of the whole batch where all micro-batches have as many of them.
    """
    ),
}
"""Classes that are compared with as many labels in each micro-batch, and what holds otherwise."""

LOOSER = {
    "MobileBertForMultipleChoice": 1e-4,
    "WhisperForAudioClassification": 1e-4,
}
"""Relative tolerances of classes with sums of large numbers of both signs."""

NOT_IN_PROCESSES = {
    r"ReformerFor.*": (
        """
        Reversible layers run a backward pass inside of the backward pass, in which `DistributedDataParallel` sees their
        parameters a second time and raises.
    """
    ),
}
"""Classes that several processes cannot train, with or without a Trainer, and why."""

NOT_MEANS = {
    r"(Cvt|EfficientNet|HGNetV2|Levit|MobileNetV1|MobileNetV2|MobileViT|MobileViTV2|RegNet|ResNet|SwiftFormer|TextNet)For.*"
    r"|LevitForImageClassificationWithTeacher"
    r"|(Beit|DPT|Data2VecVision|MobileNetV2|MobileViT|MobileViTV2|Segformer|UperNet)ForSemanticSegmentation"
    r"|Wav2Vec2ConformerFor.*|PatchTS.*For.*": (
        """
        Batch norm takes mean and variance of the batch that it is given, so a micro-batch is normalised by its own. The
        losses are still weighed right: the gradient is the mean of those of the micro-batches.
    """
    ),
    r"(Git|Moshi)ForCausalLM": (
        """
        Shifts its labels twice, the second time across the rows of a batch, so that the last prediction of a row is
        compared with a label of the next one: rows depend on their neighbours.
    """
    ),
    r".*ForCTC": (
        """
        The default `ctc_loss_reduction="sum"` adds up samples, whatever their number: a window gives the mean of the
        sums of its micro-batches. With "mean" the loss is a mean over samples.
    """
    ),
    r".*(ObjectDetection|InstanceSegmentation|UniversalSegmentation)|(ConditionalDetr|Detr)ForSegmentation": (
        """
        Losses of matched boxes are divided by the number of boxes of the batch, which are no labels that can be
        counted: a window gives the mean of the losses of its micro-batches.
    """
    ),
    r"(UniSpeech|UniSpeechSat|Wav2Vec2)ForPreTraining": (
        """
        Contrasts with masked frames of the batch, summed: a window gives the mean of the sums of its micro-batches.
    """
    ),
    r"(ViTMAE|VideoMAE|Hiera|Flava)ForPreTraining|.*ForMaskedImageModeling|PatchTS.*ForPretraining": (
        """
        Patches are masked at random, or by a mask of the batch: which ones depends on the calls of the model.
    """
    ),
    r"ClvpModelForConditionalGeneration|.*ForContrastiveLearning|.*(ImageTextRetrieval|ImageAndTextRetrieval)": (
        """
        Each sample is compared with all others of its batch: a window gives the mean over its micro-batches.
    """
    ),
}
"""Classes whose loss is not a mean over items, and what holds for them."""

NOT_WALKED = {
    "needs timm, which the tests do without": (
        """
        FastVlmForConditionalGeneration Gemma3nForConditionalGeneration PerceptionLMForConditionalGeneration
        TimmWrapperForImageClassification
    """
    ),
    "needs detectron2 or natten, which the tests do without": (
        """
        DinatForImageClassification LayoutLMv2ForQuestionAnswering LayoutLMv2ForSequenceClassification
        LayoutLMv2ForTokenClassification
    """
    ),
    "computes no loss of labels": (
        """
        ColModernVBertForRetrieval ColPaliForRetrieval ColQwen2ForRetrieval DPTForDepthEstimation
        DeiTForImageClassificationWithTeacher DepthAnythingForDepthEstimation DepthProForDepthEstimation
        EfficientLoFTRForKeypointMatching EsmForProteinFolding LightGlueForKeypointMatching
        MgpstrForSceneTextRecognition PerceiverForMultimodalAutoencoding PerceiverForOpticalFlow
        PromptDepthAnythingForDepthEstimation Qwen2_5OmniForConditionalGeneration
        Qwen2_5OmniPreTrainedModelForConditionalGeneration Qwen3OmniMoeForConditionalGeneration
        Qwen3OmniMoePreTrainedModelForConditionalGeneration SeamlessM4TForSpeechToSpeech SeamlessM4TForTextToSpeech
        SeamlessM4Tv2ForSpeechToSpeech SeamlessM4Tv2ForTextToSpeech SuperGlueForKeypointMatching
        SuperPointForKeypointDetection Swin2SRForImageSuperResolution VitMatteForImageMatting
        VitPoseForPoseEstimation ZoeDepthForDepthEstimation
    """
    ),
    "has a configuration that its sizes alone do not make small": (
        """
        BltForCausalLM BridgeTowerForMaskedLM BrosForTokenClassification BrosSpadeEEForTokenClassification
        BrosSpadeELForTokenClassification ChameleonForConditionalGeneration CsmDepthDecoderForCausalLM
        CsmForConditionalGeneration DbrxForCausalLM DeepseekVLHybridForConditionalGeneration
        Emu3ForConditionalGeneration Ernie4_5_VLMoeForConditionalGeneration Ernie4_5_VL_MoeForConditionalGeneration
        Gemma3nForCausalLM GlmAsrForConditionalGeneration GotOcr2ForConditionalGeneration
        GraniteMoeHybridForCausalLM JanusForConditionalGeneration KyutaiSpeechToTextForConditionalGeneration
        Llama4ForConditionalGeneration MusicgenForConditionalGeneration MusicgenMelodyForConditionalGeneration
        PerceiverForImageClassificationFourier Phi4MultimodalForCausalLM Qwen2_5OmniThinkerForConditionalGeneration
        Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration Qwen3OmniMoeTalkerForConditionalGeneration
        Qwen3OmniMoeThinkerForConditionalGeneration RagSequenceForGeneration RagTokenForGeneration
        VibeVoiceAsrForConditionalGeneration ViltForImagesAndTextClassification VoxtralForConditionalGeneration
        Zamba2ForCausalLM Zamba2ForSequenceClassification ZambaForCausalLM ZambaForSequenceClassification
    """
    ),
    "takes inputs that no other class takes": (
        """
        Blip2ForConditionalGeneration BlipForQuestionAnswering CLIPSegForImageSegmentation
        CamembertForMultipleChoice Data2VecAudioForAudioFrameClassification DiaForConditionalGeneration
        EvollaForProteinText2Text GLPNForDepthEstimation HiggsAudioV2ForConditionalGeneration
        IdeficsForVisionText2Text ImageGPTForCausalImageModeling InformerForPrediction
        InstructBlipForConditionalGeneration InstructBlipVideoForConditionalGeneration
        Kosmos2ForConditionalGeneration LongformerForMultipleChoice LongformerForQuestionAnswering
        LukeForEntityClassification LukeForEntityPairClassification LukeForEntitySpanClassification
        LxmertForPreTraining LxmertForQuestionAnswering MoshiForConditionalGeneration MusicgenForCausalLM
        MusicgenMelodyForCausalLM PerceiverForImageClassificationConvProcessing
        PerceiverForImageClassificationLearned PerceiverForMaskedLM Pix2StructForConditionalGeneration
        Qwen2_5OmniTalkerForConditionalGeneration RoCBertForPreTraining SeamlessM4TForSpeechToText
        SeamlessM4TForTextToText SeamlessM4TTextToUnitForConditionalGeneration SeamlessM4Tv2ForSpeechToText
        SeamlessM4Tv2ForTextToText SegGptForImageSegmentation ShieldGemma2ForImageClassification
        Siglip2ForImageClassification SpeechT5ForSpeechToSpeech SpeechT5ForSpeechToText SpeechT5ForTextToSpeech
        SplinterForPreTraining TapasForMaskedLM TapasForQuestionAnswering TapasForSequenceClassification
        TimeSeriesTransformerForPrediction TimesFm2_5ModelForPrediction TimesFmModelForPrediction
        TvpForVideoGrounding UdopForConditionalGeneration ViltForQuestionAnswering VisualBertForPreTraining
        VisualBertForQuestionAnswering VisualBertForRegionToPhraseAlignment VisualBertForVisualReasoning
        VoxtralRealtimeForConditionalGeneration Wav2Vec2BertForAudioFrameClassification XLMRobertaForMultipleChoice
    """
    ),
}
"""Why a class is neither compared nor named above -> such classes."""


def matches(name: str, table: Iterable[str]) -> bool:
    """Return whether the name of a class fits one of the regular expressions of a table."""
    return any(re.fullmatch(pattern, name) for pattern in table)


def is_walked(name: str) -> bool:
    """Return whether the walk compares a class."""
    left_out = {name for names in NOT_WALKED.values() for name in names.split()}
    return name not in left_out and not matches(name, NOT_MEANS)

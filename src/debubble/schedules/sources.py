"""Sources of schedules: one record for every paper, report and program.

A schedule is registered with a text in which ``@key`` stands for a record:
``"@qi2024zero; search: debubble"``. What people read and the entry for BibTeX both come from that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A publication, or a program."""

    title: str
    """As printed."""
    year: int
    """That of its venue, else of its first version; 0 for programs that change all the time."""
    authors: tuple[str, ...]
    """Their names; that of an organization in braces, and ``"others"`` for many more."""
    venue: str = ""
    """Conference or journal as BibTeX shows it; empty for a preprint or program."""
    arxiv: str = ""
    """Number on arXiv, if it is there."""
    place: str = ""
    """Repository and what to look at in it, for programs and pages."""

    @property
    def text(self) -> str:
        """Authors in short, title and number: what fits in a line."""
        where = f"arXiv {self.arxiv}" if self.arxiv else self.place or f"{self.venue} {self.year}"
        return f"{self._who}, {self.title}, {where}"

    @property
    def _who(self) -> str:
        first, *more = [
            name.strip("{}") if name[0] == "{" else name.rpartition(" ")[2] for name in self.authors
        ]
        if len(more) > 1 or "others" in more:
            return f"{first} et al."
        return " and ".join([first, *more])


SC = "International Conference for High Performance Computing, Networking, Storage and Analysis"
ICML = "International Conference on Machine Learning"
MLSYS = "Proceedings of Machine Learning and Systems"
NEURIPS = "Advances in Neural Information Processing Systems"
MEGATRON = "NVIDIA/Megatron-LM"
SEQPIPE = "mindspore/ccsrc/frontend/parallel/pipeline_transformer/seqpipe_scheduler.cc"

SOURCES = {
    "harlap2018pipedream": Source(
        "PipeDream: Fast and Efficient Pipeline Parallel DNN Training", 2018,
        ("Aaron Harlap", "Deepak Narayanan", "Amar Phanishayee", "Vivek Seshadri",
         "Nikhil Devanur", "Greg Ganger", "Phil Gibbons"),
        arxiv="1806.03377",
    ),
    "huang2019gpipe": Source(
        "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019,
        ("Yanping Huang", "Youlong Cheng", "Ankur Bapna", "Orhan Firat", "Mia Xu Chen",
         "Dehao Chen", "HyoukJoong Lee", "Jiquan Ngiam", "Quoc V. Le", "Yonghui Wu",
         "Zhifeng Chen"),
        NEURIPS, "1811.06965",
    ),
    "jain2020gems": Source(
        "GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training",
        2020,
        ("Arpan Jain", "Ammar Ahmad Awan", "Asmaa M. Aljuhani", "Jahanzeb Maqbool Hashmi",
         "Quentin G. Anthony", "Hari Subramoni", "Dhabaleswar K. Panda", "Raghu Machiraju",
         "Anil Parwani"),
        SC,
    ),
    "fan2021dapple": Source(
        "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models", 2021,
        ("Shiqing Fan", "Yi Rong", "Chen Meng", "Zongyan Cao", "Siyu Wang", "Zhen Zheng",
         "Chuan Wu", "Guoping Long", "Jun Yang", "Lixue Xia", "Lansong Diao", "Xiaoyong Liu",
         "Wei Lin"),
        "ACM SIGPLAN Symposium on Principles and Practice of Parallel Programming", "2007.01045",
    ),
    "narayanan2021memory": Source(
        "Memory-Efficient Pipeline-Parallel DNN Training", 2021,
        ("Deepak Narayanan", "Amar Phanishayee", "Kaiyu Shi", "Xie Chen", "Matei Zaharia"),
        ICML, "2006.09503",
    ),
    "li2021terapipe": Source(
        "TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language Models", 2021,
        ("Zhuohan Li", "Siyuan Zhuang", "Shiyuan Guo", "Danyang Zhuo", "Hao Zhang", "Dawn Song",
         "Ion Stoica"),
        ICML, "2102.07988",
    ),
    "narayanan2021efficient": Source(
        "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021,
        ("Deepak Narayanan", "Mohammad Shoeybi", "Jared Casper", "Patrick LeGresley",
         "Mostofa Patwary", "Vijay Anand Korthikanti", "Dmitri Vainbrand", "Prethvi Kashinkunti",
         "Julie Bernauer", "Bryan Catanzaro", "Amar Phanishayee", "Matei Zaharia"),
        SC, "2104.04473",
    ),
    "li2021chimera": Source(
        "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines",
        2021, ("Shigang Li", "Torsten Hoefler"), SC, "2107.06925",
    ),
    "lamypoirier2023breadth": Source(
        "Breadth-First Pipeline Parallelism", 2023, ("Joel Lamy-Poirier",), MLSYS, "2211.05953",
    ),
    "zhuang2023optimizing": Source(
        "On Optimizing the Communication of Model Parallelism", 2023,
        ("Yonghao Zhuang", "Hexu Zhao", "Lianmin Zheng", "Zhuohan Li", "Eric P. Xing",
         "Qirong Ho", "Joseph E. Gonzalez", "Ion Stoica", "Hao Zhang"),
        MLSYS, "2211.05322",
    ),
    "kim2023bpipe": Source(
        "BPipe: Memory-Balanced Pipeline Parallelism for Training Large Language Models", 2023,
        ("Taebum Kim", "Hyoungjoo Kim", "Gyeong-In Yu", "Byung-Gon Chun"), ICML,
    ),
    "liu2023hanayo": Source(
        "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model Training "
        "Efficiency", 2023,
        ("Ziming Liu", "Shenggan Cheng", "Haotian Zhou", "Yang You"), SC, "2308.15762",
    ),
    "qi2024zero": Source(
        "Zero Bubble Pipeline Parallelism", 2024,
        ("Penghui Qi", "Xinyi Wan", "Guangxing Huang", "Min Lin"),
        "International Conference on Learning Representations", "2401.10241",
    ),
    "qi2024controllable": Source(
        "Pipeline Parallelism with Controllable Memory", 2024,
        ("Penghui Qi", "Xinyi Wan", "Nyamdavaa Amar", "Min Lin"), NEURIPS, "2405.15362",
    ),
    "llama2024herd": Source(
        "The Llama 3 Herd of Models", 2024, ("Aaron Grattafiori", "others"), arxiv="2407.21783",
    ),
    "wu2024bitpipe": Source(
        "BitPipe: Bidirectional Interleaved Pipeline Parallelism for Accelerating Large Models "
        "Training", 2024,
        ("Houming Wu", "Ling Chen", "Wenjie Yu"), arxiv="2410.19367",
    ),
    "deepseek2024v3": Source(
        "DeepSeek-V3 Technical Report", 2024, ("{DeepSeek-AI}",), arxiv="2412.19437",
    ),
    "sun2025seq1f1b": Source(
        "Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language Model Training",
        2025,
        ("Ao Sun", "Weilin Zhao", "Xu Han", "Cheng Yang", "Xinrong Zhang", "Zhiyuan Liu",
         "Chuan Shi", "Maosong Sun"),
        "Conference of the North American Chapter of the Association for Computational Linguistics",
        "2406.03488",
    ),
    "yeung2025balancing": Source(
        "Balancing Pipeline Parallelism with Vocabulary Parallelism", 2025,
        ("Man Tsung Yeung", "Penghui Qi", "Min Lin", "Xinyi Wan"), MLSYS, "2411.05288",
    ),
    "wan2025pipeoffload": Source(
        "PipeOffload: Improving Scalability of Pipeline Parallelism with Memory Optimization", 2025,
        ("Xinyi Wan", "Penghui Qi", "Guangxing Huang", "Min Lin", "Jialin Li"), ICML, "2503.01328",
    ),
    "li2025slimpipe": Source(
        "SlimPipe: Memory-Thrifty and Efficient Pipeline Parallelism for Long-Context LLM Training",
        2025,
        ("Zhouyang Li", "Yuliang Liu", "Wei Zhang", "Tailing Yuan", "Bin Chen", "Chengru Song",
         "Di Zhang"),
        SC, "2504.14519",
    ),
    "sun2025mepipe": Source(
        "MEPipe: Democratizing LLM Training with Memory-Efficient Slice-Level Pipeline Scheduling "
        "on Cost-Effective Accelerators", 2025,
        ("Zhenbo Sun", "Shengqi Chen", "Yuanwei Wang", "Jian Sha", "Guanyu Feng", "Wenguang Chen"),
        "European Conference on Computer Systems",
    ),
    "qi2025synergistic": Source(
        "Synergistic Tensor and Pipeline Parallelism", 2025,
        ("Mengshi Qi", "Jiaxuan Peng", "Jie M. Zhang", "Juan Zhu", "Yong Li", "Huadong Ma"),
        NEURIPS, "2510.27257",
    ),
    "elam2026breaking": Source(
        "Breaking the Bubble: Asynchronous Pipeline Parallel Training with Bounded Weight "
        "Inconsistency", 2026,
        ("Itay Elam", "Eliron Rahimi", "Avi Mendelson", "Chaim Baskin"), arxiv="2606.07881",
    ),
    "sea2025cut": Source(
        "DualPipe could be better without the Dual", 2025, ("{Sea AI Lab}",),
        place="sail.sea.com/blog/articles/63",
    ),
    "dualpipe": Source("DualPipe", 2025, ("{DeepSeek-AI}",), place="deepseek-ai/DualPipe"),
    "megatron": Source("Megatron-LM", 0, ("{NVIDIA}",), place=MEGATRON),
    "mindspore": Source("MindSpore", 0, ("{Huawei}",), place=SEQPIPE),
    "paddle": Source("PaddlePaddle", 0, ("{Baidu}",), place="PaddlePaddle/Paddle"),
    "maxtext": Source("MaxText", 0, ("{Google}",), place="AI-Hypercomputer/maxtext"),
    "pytorch": Source(
        "PyTorch", 0, ("{PyTorch contributors}",), place="torch.distributed.pipelining",
    ),
}  # fmt: skip
"""All records by their BibTeX key, oldest first, then programs."""

_KEY = re.compile(r"(?<![\w.@])@([a-z][a-z0-9]*)")


def keys_in(text: str) -> list[str]:
    """Return keys of the records that a text refers to, in its order."""
    return [key for key in dict.fromkeys(_KEY.findall(text)) if key in SOURCES]


def spelled_out(text: str) -> str:
    """Return a text with every record in place of its key; other words with @ stay as they are."""
    return _KEY.sub(lambda at: SOURCES[at[1]].text if at[1] in SOURCES else at[0], text)
